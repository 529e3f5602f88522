"""Tool configuration files, good and bad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrl.config import ConfigError, from_dict, read_tool_config
from hpcrl.config.seam import UserError
from hpcrl.tools import check_tools, load_tools
from hpcrl.tools.schemas import ToolSchema

CALCULATOR = "hpcrl.tools.calculator.CalculatorTool"


def schema(**function: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": "t", "description": "d", "parameters": parameters, **function}}


def entry(**changes: Any) -> dict[str, Any]:
    return {"class_name": CALCULATOR, "config": {"type": "native"}, "tool_schema": schema(), **changes}


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def test_the_shipped_file() -> None:
    (tool,) = load_tools("configs/tools/calculator.yaml").values()
    shown = tool.get_openai_tool_schema()
    assert shown["function"]["name"] == "calculator"
    assert shown["function"]["parameters"]["required"] == ["expression"]


def test_is_found_beside_the_package_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(load_tools("configs/tools/calculator.yaml")) == ["calculator"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tools: [", "not valid YAML"),
        ({"tool": []}, "a list `tools:`"),
        ({"tools": []}, "a list `tools:`"),
        ({"tools": [entry()], "tols": []}, "unknown key 'tols'"),
        ({"tools": [entry(tool_schema=schema(descripton="x"))]}, r"function\.descripton: unknown key.*: descri"),
        ({"tools": ["x"]}, "it must be {class_name"),
        ({"tools": [entry(clas_name="x")]}, r"tools\[0\]\.clas_name: unknown key; nearest: class_name"),
        ({"tools": [entry(class_name="Calculator")]}, "dotted path"),
        (
            {"tools": [entry(class_name="hpcrl.tools.calculater.CalculatorTool")]},
            r"did you mean hpcrl\.tools\.calculator\?",
        ),
        ({"tools": [entry(class_name="hpcrl.tools.calculator.Calculater")]}, "did you mean CalculatorTool"),
        ({"tools": [entry(class_name="hpcrl.tools.calculator.calculate")]}, "must derive from"),
        ({"tools": [entry(class_name="no_such_package.x.Tool")]}, "no module 'no_such_package.x'"),
        ({"tools": [entry(config={"timeout": -1})]}, "timeout must be a positive"),
        ({"tools": [entry(config={"speed": 1})]}, r"unknown keys \['speed'\]"),
        ({"tools": [entry(config={"type": "mcp"})]}, r"config\.type: 'mcp' is not allowed; allowed: native"),
        ({"tools": [entry(tool_schema=schema(name=""))]}, r"function\.name"),
        ({"tools": [entry(tool_schema=schema(parameters={"type": "array"}))]}, r"parameters\.type"),
        ({"tools": [entry(tool_schema={"type": "function"})]}, r"tool_schema\.function: missing"),
        (
            {"tools": [entry(tool_schema=schema(parameters={"properties": {"x": {"type": "strng"}}}))]},
            "'strng' is not valid",
        ),
        (
            {"tools": [entry(tool_schema=schema(parameters={"required": ["y"]}))]},
            r"parameters\.required: y is not among the properties",
        ),
        ({"tools": [{k: v for k, v in entry().items() if k != "tool_schema"}]}, r"tool_schema: missing"),
        ({"tools": [entry(), entry()]}, "same name: t"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load_tools(write(tmp_path / "tools.yaml", content))
    assert str(tmp_path) in str(caught.value)


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    wrong = [entry(clas_name="x", config=[1]), entry(class_name="Tool"), "x"]
    with pytest.raises(ConfigError) as caught:
        read_tool_config(Path(write(tmp_path / "tools.yaml", {"tools": wrong})))
    assert [problem.split(", ", 1)[1].split(":")[0] for problem in caught.value.problems] == [
        "tools[0].clas_name", "tools[0].config", "tools[1].class_name", "tools[2]"
    ]  # fmt: skip


def test_a_missing_file_and_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"nearest: configs/tools/calculator\.yaml"):
        load_tools("configs/tools/calculater.yaml")


def test_a_class_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_tool_module.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(tmp_path / "tools.yaml", {"tools": [entry(class_name="broken_tool_module.Tool")]})
    with pytest.raises(UserError, match=r"broken_tool_module could not be imported.*not_there_at_all"):
        load_tools(path)


def test_instant_checks_import_no_tool(tmp_path: Path) -> None:
    (tmp_path / "heavy_tool_module.py").write_text("raise RuntimeError('imported')\n")
    path = write(tmp_path / "tools.yaml", {"tools": [entry(class_name="heavy_tool_module.Tool")]})
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from hpcrl.config import ConfigError, from_dict, read_tool_config
from hpcrl.tools import check_tools
multi_turn = {{"enable": True, "tool_config_path": {path!r}}}
check_tools(from_dict({{"actor_rollout_ref": {{"rollout": {{"multi_turn": multi_turn}}}}}}), deep=False)
assert not sys.modules.keys() & {{"torch", "transformers", "ray", "heavy_tool_module"}}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checks_are_silent_without_tools() -> None:
    check_tools(from_dict({}))
    off = {"enable": False, "tool_config_path": "nowhere.yaml"}
    check_tools(from_dict({"actor_rollout_ref": {"rollout": {"multi_turn": off}}}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 1}, None),
        ({"n": 1, "unit": "km", "extra": 1}, None),
        ({}, "'n' is a required property"),
        ({"n": "1"}, "n: '1' is not of type 'integer'"),
        ({"n": True}, "n: True is not of type 'integer'"),
        ({"n": 1, "unit": "mile"}, "unit: 'mile' is not one of ['km', 'm']"),
        ({"n": 1, "where": {"x": "a"}}, "where.x: 'a' is not of type 'number'"),
    ],
)
def test_arguments_are_held_against_the_schema(arguments: dict[str, Any], said: str | None) -> None:
    properties = {
        "n": {"type": "integer"},
        "unit": {"type": "string", "enum": ["km", "m"]},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
    }
    function = {"name": "t", "parameters": {"properties": properties, "required": ["n"]}}
    assert ToolSchema(function=function).argument_error(arguments) == said  # type: ignore[arg-type]
