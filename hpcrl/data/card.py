"""The dataset card: what the prepare stage read, kept, dropped and found wrong."""

from __future__ import annotations

from typing import Any

from hpcrl.data.lengths import length_statistics
from hpcrl.data.shard import FORMAT, LengthPolicy, ShardReport, ShardTask


def split_card(tasks: list[ShardTask], report: ShardReport) -> dict[str, Any]:
    """The card of one split."""
    return {
        "rows": report.total("kept"),
        "read": report.total("read"),
        "dropped": {"overlong": report.total("overlong"), "examples": report.overlong_examples},
        "bad": {
            "rows": report.total("bad"),
            "reasons": dict(sorted(report.bad.items(), key=lambda item: (-item[1], item[0]))),
            "examples": report.bad_examples,
        },
        "sources": [
            {**source.identity(), "read": count.read, "kept": count.kept, "overlong": count.overlong, "bad": count.bad}
            for source, count in zip(tasks[0].sources, report.sources, strict=True)
        ],
        "prompt_tokens": length_statistics(report.prompt_tokens),
        "conversation_tokens": length_statistics(report.conversation_tokens) if tasks[0].with_messages else None,
        "content_hash": f"{report.content:064x}",
        "files": [task.name for task in tasks],
    }


def card(splits: dict[str, dict[str, Any]], policy: LengthPolicy, measured_by: str, seed: int) -> dict[str, Any]:
    """The whole card."""
    return {
        "format": FORMAT,
        "seed": seed,
        "tokenizer_and_template": measured_by,
        "length_policy": {
            "max_prompt_length": policy.max_prompt,
            "sft_max_length": policy.max_conversation,
            "overlong": policy.action,
        },
        "splits": splits,
    }


def readable(value: dict[str, Any]) -> str:
    """The card as Markdown."""
    policy = value["length_policy"]
    lines = [
        "# Dataset card",
        "",
        f"Prompts up to {policy['max_prompt_length']} tokens; longer ones: {policy['overlong']}. Seed {value['seed']}.",
        "",
        "| split | rows | read | overlong | bad | prompt tokens (min / mean / p95 / max) | content |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for name, split in value["splits"].items():
        tokens = split["prompt_tokens"]
        lengths = " / ".join(str(tokens[key]) for key in ("min", "mean", "p95", "max"))
        lines.append(
            f"| {name} | {split['rows']} | {split['read']} | {split['dropped']['overlong']} | {split['bad']['rows']} "
            f"| {lengths} | {split['content_hash'][:12]} |"
        )
    for name, split in value["splits"].items():
        lines += ["", f"## {name}", ""]
        for source in split["sources"]:
            what = source.get("path") or source.get("options") or ""
            lines.append(f"- source {source['source']} {what}: read {source['read']}, kept {source['kept']}")
        lines += [f"- bad: {reason} ({rows} rows)" for reason, rows in split["bad"]["reasons"].items()]
        lines += [f"  - {place}: {reason}" for place, reason in split["bad"]["examples"]]
        lines += [f"- too long: {place} ({tokens} tokens)" for place, tokens in split["dropped"]["examples"]]
        lines += _histogram("prompt", split["prompt_tokens"])
        lines += _histogram("conversation", split["conversation_tokens"])
    return "\n".join(lines) + "\n"


def _histogram(what: str, statistics: dict[str, Any] | None) -> list[str]:
    if not statistics or not statistics["histogram"]:
        return []
    most = max(bar["rows"] for bar in statistics["histogram"])
    bars = [
        f"    {bar['from']:>7} to {bar['below'] - 1:<7} {'#' * max(1, round(40 * bar['rows'] / most))} {bar['rows']}"
        for bar in statistics["histogram"]
    ]
    return ["", f"Tokens of a {what}:", "", *bars]
