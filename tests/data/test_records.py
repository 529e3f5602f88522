"""Every record of a file is found once, in its place, in any range."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.config.seam import UserError
from hpcrl.data import records
from hpcrl.data.records import scan

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def everything(path: Path) -> list[dict[str, Any] | None]:
    file = scan(path)
    rows = [raw.fields for raw in file.read(0, file.records)]
    assert len(rows) == file.records
    return rows


@given(values=st.lists(TEXT, max_size=30), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_range_of_any_text_format_is_a_slice_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("records")
    rows = [{"a": value, "b": str(i)} for i, value in enumerate(values)]
    (folder / "x.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    (folder / "x.json").write_text(json.dumps(rows, indent=1), "utf-8")
    with open(folder / "x.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["a", "b"])
        writer.writeheader()
        writer.writerows(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    as_csv = [{"a": row["a"] or None, "b": row["b"]} for row in rows]
    old, records.MARK_EVERY = records.MARK_EVERY, 3
    try:
        for name, expected in (("x.jsonl", rows), ("x.json", rows), ("x.csv", as_csv)):
            file = scan(folder / name)
            assert file.records == len(rows), name
            assert [raw.fields for raw in file.read(start, stop)] == expected[start:stop], name
    finally:
        records.MARK_EVERY = old


def test_bad_lines_keep_their_place(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": 2\n[3]\n\xff\xfe\n{"a": 5}')
    file = scan(path)
    found = [(raw.place.rpartition(":")[2], raw.fields, raw.problem) for raw in file.read(0, 10)]
    assert file.records == 5
    assert [(line, fields) for line, fields, _ in found] == [
        ("1", {"a": 1}), ("3", None), ("4", None), ("5", None), ("6", {"a": 5})
    ]  # fmt: skip
    assert "not JSON" in found[1][2]
    assert "not an object" in found[2][2]
    assert found[3][2] == "not UTF-8"


def test_csv_quotes_newlines_and_faults(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('\ufeffq,a\n"say ""hi"",\nplease",1\nshort\n,2\nx,"3\ny,4\n', encoding="utf-8")
    file = scan(path)
    raws = list(file.read(0, 10))
    assert file.columns == ("q", "a")
    assert [raw.fields for raw in raws] == [
        {"q": 'say "hi",\nplease', "a": "1"}, None, {"q": None, "a": "2"}, None, {"q": "y", "a": "4"}
    ]  # fmt: skip
    assert [raw.place.rpartition(":")[2] for raw in raws] == ["2", "4", "5", "6", "7"]
    assert "too few" in raws[1].problem
    assert "cannot be read" in raws[3].problem  # an unclosed quote costs its own line


def test_every_line_after_an_unclosed_csv_quote_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MARK_EVERY", 1)
    path = tmp_path / "x.csv"
    path.write_text('q,a\n"open,1\nx,2\n"also open,3\ny,4\n"z","5"\n')
    file = scan(path)
    expected = [None, {"q": "x", "a": "2"}, None, {"q": "y", "a": "4"}, {"q": "z", "a": "5"}]
    assert [raw.fields for raw in file.read(0, 10)] == expected
    for start in range(5):
        assert [raw.fields for raw in file.read(start, start + 2)] == expected[start : start + 2]
    path.write_text('"q,a\nx,2\n')
    with pytest.raises(UserError, match="header cannot be read"):
        scan(path)


def test_json_layouts(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "object.json").write_text('{\n "a": 1\n}')
    (tmp_path / "one.json").write_text('{"a": 1}\n')
    (tmp_path / "mixed.json").write_text('[{"a": 1}, 2]')
    (tmp_path / "empty.json").write_text("")
    assert everything(tmp_path / "lines.json") == [{"a": 1}, {"a": 2}]
    assert everything(tmp_path / "object.json") == [{"a": 1}]
    assert everything(tmp_path / "one.json") == [{"a": 1}]
    assert everything(tmp_path / "mixed.json") == [{"a": 1}, None]
    assert everything(tmp_path / "empty.json") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1}, {"a": ', "not JSON after record 1; the file is cut or broken"),
        ('[{"a": 1}', "not JSON after record 1"),
        ('[{"a": 1}, {"a": }, {"a": 3}]', "not JSON after record 1"),
        ('[{"a": 1}, {"a": "x}]', "not JSON after record 1"),
        ("[" * 100_000, "not JSON after record 0"),
        ('[{"a": 1}]\n[{"a": 2}]', "the JSON array ends after record 1, and something follows"),
        ('{\n"a": 1\n}\n{\n"a": 2\n}', "neither one JSON object nor an array nor one object on each line"),
    ],
)
def test_json_that_hides_what_follows_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        scan(tmp_path / "x.json")
    assert str(tmp_path / "x.json") in str(caught.value)


def test_a_json_array_longer_than_the_buffer(tmp_path: Path) -> None:
    rows = [{"a": "ä" * (i % 50), "i": i} for i in range(2000)]
    (tmp_path / "x.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    with open(tmp_path / "x.json", "rb") as file:
        buffer = records._JsonBuffer(file, chunk=7)
        assert buffer.peek() == "["
        buffer.skip()
        found = []
        while buffer.peek() != "]":
            if buffer.peek() == ",":
                buffer.skip()
            found.append(buffer.value())
    assert found == rows


@pytest.mark.parametrize("writer", ["polars", "pyarrow"])
def test_nested_parquet_of_either_library(tmp_path: Path, writer: str) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"é{i}\U0001f600"}], "info": {"n": i, "tags": ["a", None]}, "s": None}
        for i in range(1000)
    ]
    path = tmp_path / "x.parquet"
    if writer == "polars":
        pl.DataFrame(rows, schema_overrides={"s": pl.String}).write_parquet(path, row_group_size=300)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=300)
    file = scan(path)
    assert file.records == 1000
    for start, stop in ((0, 1000), (299, 301), (600, 601), (990, 2000), (5, 5)):
        assert [raw.fields for raw in file.read(start, stop)] == rows[start:stop]
    assert [raw.place for raw in file.read(299, 300)] == [f"{path}, row 299"]
    assert next(iter(file.read(7, 8, {"info"}))).fields == {"info": rows[7]["info"]}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but no more")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(UserError, match=r"x\.parquet cannot be read as parquet"):
        scan(tmp_path / "x.parquet")
    with pytest.raises(UserError, match="format is not known"):
        scan(tmp_path / "x.txt")
    with pytest.raises(UserError, match="no such file"):
        scan(tmp_path / "gone.jsonl")
