"""The proposers that are language models: any litellm model id, and `replay:DIR`, which plays a tape of one.

Candidates differ by the finding that they are given, by the kind of change that they are asked for, and by the number
of the sample, so that they explore; all three are part of the request and so of the tape's key.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError
from scripts.propose.codemod import Refusal, editable, texts
from scripts.propose.llm import answer as answers
from scripts.propose.llm.budget import Ledger
from scripts.propose.llm.client import Client, NotMeasured
from scripts.propose.llm.edits import EditError, apply_edits
from scripts.propose.llm.prompts import prompt_hash, render
from scripts.propose.llm.provider import LiteLLM, Provider
from scripts.propose.llm.tape import Tape, default_mode
from scripts.propose.playbook import fixes, fixes_for
from scripts.propose.proposal import Answer, Task, gain

FAMILIES = (
    "",
    "remove work that is done again although its result does not change",
    "a call of the library that does several operations at once",
    "a setting or a backend that fits the shapes and the device",
)
"""Techniques that later candidates of one finding are asked to prefer; the first is free."""

SOURCE_CHARACTERS = 60_000
"""Source that a prompt holds besides the brief; about 20,000 tokens."""

TIMEOUT_S = 300.0

OTHER_BRIEF = "the answer was recorded for the same source with other measured values (llm.match: source)"


def propose(task: Task, provider: Provider | None = None) -> Answer:
    """One structured answer of the task's model, or of the tape that the proposer names."""
    model, tape = _model_and_tape(task, task.spec.get("llm") or {})
    if task.proposer.startswith("replay:"):
        samples = 1 + max(entry["sample"] for entry in tape.entries())
        if task.candidate >= samples:
            return Answer(reason=f"the tape has answers for {samples} candidates, this is candidate {task.candidate}")
    settings = {**(task.spec.get("llm") or {}), **recorded_settings(tape)}
    task = replace(task, spec={**task.spec, "llm": settings})
    client = Client(
        provider=provider or LiteLLM(settings.get("api_base")),
        tape=tape,
        ledger=Ledger(_store("budget.json"), limits(task, model)),
        slots=_store("slots"),
        timeout_s=float(settings.get("timeout_s") or TIMEOUT_S),
        label=settings.get("label"),
        context={"tree": task.base_tree, "finding": (_finding(task) or {}).get("id"), "family": _family(task)},
    )
    result = Answer(model=model, prompt_hash=prompt_hash(), transcript=client.transcript)
    client.transcript.append(
        {
            "event": "task",
            "model": model,
            "mode": settings.get("mode", "single"),
            "finding": (_finding(task) or {}).get("id"),
            "family": _family(task),
            "prompt_hash": prompt_hash(),
        }
    )
    try:
        if settings.get("mode") == "agent":
            from scripts.propose.llm.agent import converse

            converse(task, client, model, result)
        else:
            _single(task, client, model, result)
    except NotMeasured as reason:
        result.status, result.reason = "not_measured", str(reason)
    if client.by_source:
        result.untested = [*result.untested, OTHER_BRIEF]
    result.usage = client.spent.document()
    return result


def recorded_settings(tape: Tape) -> dict[str, Any]:
    """How the answers of a tape were asked for, where its `settings.json` says so; replaying must ask the same way."""
    path = tape.folder / "settings.json"
    if tape.mode != "replay" or not path.is_file():
        return {}
    settings = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in settings.items() if key not in ("record", "tape", "api_base")}


def limits(task: Task, model: str) -> dict[str, Mapping[str, float | None]]:
    """Budgets by scope: of this workload and model, and of the sweep when WHOLEJOB_SWEEP_BUDGET (JSON) says so."""
    scopes: dict[str, Mapping[str, float | None]] = {
        f"{task.spec.get('workload', 'workload')}/{model}": task.spec.get("budget") or {}
    }
    sweep = os.environ.get("WHOLEJOB_SWEEP_BUDGET")
    if sweep:
        try:
            scopes["sweep"] = dict(json.loads(sweep))
        except (ValueError, TypeError):
            raise InputError(f'WHOLEJOB_SWEEP_BUDGET: {sweep!r} should be JSON like {{"dollars": 20}}') from None
    return scopes


def _model_and_tape(task: Task, settings: Mapping[str, Any]) -> tuple[str, Tape]:
    kind, _, place = task.proposer.partition(":")
    match = settings.get("match") or "request"
    if kind == "replay" and place:
        folder = Path(place)
        if not folder.is_dir():
            raise InputError(f"proposer {task.proposer}: no such folder; should hold recorded answers")
        tape = Tape(folder, "replay", match)
        return _recorded_model(tape), tape
    mode = settings.get("record") or default_mode(os.environ, _has_key(task.proposer, settings))
    return task.proposer, Tape(Path(settings.get("tape") or _store("tape")), mode, match)


def _recorded_model(tape: Tape) -> str:
    """The model whose answers a tape holds."""
    found = {entry["request"]["model"] for entry in tape.entries()}
    if len(found) != 1:
        listed = ", ".join(sorted(found)) or "none"
        raise InputError(f"replay:{tape.folder}: should hold the answers of one model, has those of {listed}")
    return str(found.pop())


def _has_key(model: str, settings: Mapping[str, Any]) -> bool:
    provider = model.partition("/")[0].upper()
    return bool(settings.get("api_base")) or any(
        name.startswith(provider) and name.endswith("_API_KEY") for name in os.environ
    )


def _store(name: str) -> Path:
    return Path(os.environ.get("WHOLEJOB_LLM_STORE") or "results/store/llm") / name


# One structured answer


def _single(task: Task, client: Client, model: str, result: Answer) -> None:
    settings = task.spec.get("llm") or {}
    region = _region(task) if settings.get("region") else None
    messages = _region_messages(task, region) if region else first_messages(task, agent=False)
    problem = "no answer"
    for turn in range(1 + int(settings.get("repair_attempts", 2))):
        request = request_of(task, model, messages, response_format=answers.response_format(region))
        message, finish = first_choice(client.ask(request, task.candidate))
        last = turn == int(settings.get("repair_attempts", 2))
        try:
            value = answers.parse(message.get("content"), finish, region)
            edits = apply_edits(lambda path: read(task, path), value["edits"], value["files"])
            outside = out_of_scope(task, edits)
            if outside and not last:
                raise EditError(f"{', '.join(outside)}: not editable in this workload")
        except (answers.AnswerError, EditError) as error:
            problem = str(error)
            client.transcript.append({"event": "refused", "reason": problem})
            if not last:
                # An answer of megabytes is not sent back; what is wrong with it is.
                text = (message.get("content") or "")[:20_000]
                messages = [
                    *messages,
                    {"role": "assistant", "content": text or "(empty)"},
                    {"role": "user", "content": render("repair", problem=problem)},
                ]
            continue
        if region is not None:
            finding = _finding(task) or {}
            name = fixes_for(finding["id"])[0]
            value |= {"title": fixes()[name].TITLE, "findings_used": [finding["id"]], "classes": fixes()[name].CLASSES}
        accept(task, result, value, edits)
        return
    result.status, result.reason = "nothing", f"no usable answer: {problem.splitlines()[0]}"


def accept(task: Task, result: Answer, value: Mapping[str, Any], edits: dict[str, str]) -> None:
    """Fill the answer from a validated one. Edits out of scope stay: the guard refuses them, on the record."""
    outside = out_of_scope(task, edits)
    if outside:
        result.transcript.append({"event": "out_of_scope", "paths": outside})
    assigned = _finding(task)
    known = {finding["id"]: finding for finding in [*([assigned] if assigned else []), *task.findings]}
    used = [name for name in value["findings_used"] if name in known]
    ceiling = gain(known[used[0]]) if used else None
    result.status, result.edits = "patch", edits
    result.findings_used = used
    result.title = " ".join(str(value["title"]).split())[:100] or "Untitled"
    result.hypothesis = value["hypothesis"]
    # The number is the finding's ceiling; what the model hopes for is quoted, not used.
    said = f"the model says: {value['expected_gain']}"
    result.expected_gain = (
        {**ceiling, "derivation": f"{ceiling['derivation']}; {said}"}
        if ceiling
        else {"fraction": None, "speedup": None, "derivation": said}
    )
    result.risk, result.needs_flag = value["risk"], value["needs_flag"]
    result.classes, result.untested = list(dict.fromkeys(value["classes"])), list(value["untested"])


def out_of_scope(task: Task, edits: Iterable[str]) -> list[str]:
    """Paths that the workload does not let a patch touch."""
    return [path for path in edits if path.startswith("/") or ".." in path.split("/") or not editable(path, task.spec)]


def read(task: Task, path: str) -> str | None:
    """A text file of the tree; None where there is none. Nothing outside the tree can be read."""
    place = (task.tree / path).resolve()
    if path.startswith("/") or not place.is_relative_to(task.tree.resolve()) or not place.is_file():
        return None
    try:
        return place.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None


def request_of(task: Task, model: str, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The canonical request: what decides the answer, nothing else."""
    settings = task.spec.get("llm") or {}
    return {
        "provider": "litellm",
        "model": model,
        "messages": messages,
        "tools": more.get("tools"),
        "response_format": more.get("response_format"),
        "parameters": {
            "temperature": settings.get("temperature", 0.7),
            "max_tokens": int(settings.get("max_output_tokens", 4000)),
            "seed": task.candidate,
        },
        "prompt_hash": prompt_hash(),
    }


def first_choice(response: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The message and the finish reason; an empty message where the provider gave no choice."""
    choices = response.get("choices") or []
    if not choices:
        return {"content": None}, "no_choices"
    return dict(choices[0].get("message") or {}), choices[0].get("finish_reason")


def first_messages(task: Task, agent: bool) -> list[dict[str, Any]]:
    """System and user message of a task."""
    constraints, source = task.spec.get("constraints") or {}, task.spec.get("source") or {}
    files, left_out = ([], []) if agent else _sources(task)
    system = render(
        "system",
        kind=task.spec.get("kind", "training"),
        editable=source.get("editable") or ["**"],
        protected=source.get("protected") or [],
        classes=constraints.get("classes") or answers.CLASSES,
        max_lines=constraints.get("max_lines") or 400,
        agent=agent,
        max_turns=(task.spec.get("llm") or {}).get("max_turns", 20),
    )
    tried = [
        {
            "round": a.round,
            "title": a.proposal.get("title") or a.proposal["status"],
            "verdict": a.verdict,
            "reason": a.reason,
        }
        for a in task.history
    ]
    user = render(
        "user",
        finding=_finding(task),
        family=_family(task),
        tried=tried,
        brief=task.brief,
        files=files,
        left_out=left_out,
    )
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _finding(task: Task) -> dict[str, Any] | None:
    """Candidate c gets the c-th finding that points at editable source, in turn; a setting can fix which one.

    A fixed one that was not found here is asked about all the same: without evidence, without a ceiling.
    """
    fixed = (task.spec.get("llm") or {}).get("finding")
    if fixed:
        unfound = {"id": fixed, "title": fixed.replace("_", " "), "anchors": [], "ceiling": None}
        return next((finding for finding in task.findings if finding["id"] == fixed), unfound)
    usable = [
        f for f in task.findings if any(editable(a.get("path") or "", task.spec) for a in f.get("anchors") or [])
    ] or task.findings
    return usable[task.candidate % len(usable)] if usable else None


def _family(task: Task) -> str:
    rounds = task.candidate // max(1, len(task.findings))
    return FAMILIES[(rounds + task.round) % len(FAMILIES)]


def _sources(task: Task) -> tuple[list[dict[str, str]], list[str]]:
    """Editable files for the prompt, anchored ones first, within the budget of characters; and what is left out."""
    finding = _finding(task) or {}
    anchored = [anchor.get("path") for anchor in finding.get("anchors") or []]
    every = sorted(texts(task.tree, task.spec), key=lambda item: (item[0] not in anchored, item[0]))
    chosen: list[dict[str, str]] = []
    left_out: list[str] = []
    left = SOURCE_CHARACTERS
    for path, text in every:
        if len(text) <= left:
            chosen.append({"path": path, "text": text if text.endswith("\n") else text + "\n"})
            left -= len(text)
        elif len(left_out) < 50:
            left_out.append(path)
    return chosen, left_out


# One region, for models that can only write a replacement


def _region(task: Task) -> tuple[str, str]:
    """(path, lines): the statement that the finding's first known fix would change, so that a small model writes only
    its text.

    Nothing measured is in such a request, so that one tape serves every machine.
    """
    finding = _finding(task)
    if finding is None:
        raise NotMeasured("no finding to work on")
    if any(finding["id"] in attempt.proposal.get("findings_used", ()) for attempt in task.history):
        raise NotMeasured(f"{finding['id']} was answered in an earlier round, and the request would be the same")
    for name in fixes_for(finding["id"]):
        try:
            edits = fixes()[name].fix(task.tree, finding, task.spec)
        except Refusal:
            continue
        for path, text in edits.items():
            old = read(task, path) or ""
            lines = _changed_statement(old, text)
            if lines is not None:
                # Without indentation, which a small model copies wrongly; the edit puts it back.
                return path, textwrap.dedent(lines)
    raise NotMeasured(f"no known fix of {finding['id']} says which statement to change")


def _changed_statement(old: str, new: str) -> str | None:
    """The smallest whole statement of `old` that holds the first line that differs."""
    import ast
    import difflib

    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    first = next((i1 + 1 for tag, i1, _, _, _ in matcher.get_opcodes() if tag != "equal"), None)
    if first is None:
        return None
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(old))
        if isinstance(node, ast.stmt) and node.lineno <= first <= (node.end_lineno or node.lineno)
    ]
    if not spans:
        return None
    begin, end = min(spans, key=lambda span: span[1] - span[0])
    lines = "\n".join(old.split("\n")[begin - 1 : end])
    return lines if old.count(lines) == 1 else None


def _region_messages(task: Task, region: tuple[str, str]) -> list[dict[str, Any]]:
    finding = (_finding(task) or {})["id"]
    fix = fixes()[fixes_for(finding)[0]]
    hint = getattr(fix, "HINT", f"{fix.TITLE}.")
    text = render("region", finding=finding.replace("_", " "), hint=hint, path=region[0], lines=region[1])
    return [{"role": "user", "content": text}]
