"""The agent mode: a bounded loop in which a model looks around with tools, tries its edits, and submits."""

from __future__ import annotations

import json
from typing import Any

from scripts.propose.llm import answer as answers
from scripts.propose.llm.ask import accept, first_choice, first_messages, out_of_scope, read, request_of
from scripts.propose.llm.client import Client
from scripts.propose.llm.edits import EditError, apply_edits
from scripts.propose.llm.tape import redacted
from scripts.propose.llm.tools import TOOLS, Toolbox
from scripts.propose.proposal import Answer, Task

LONGEST_RESULT = 12_000
"""Characters of a tool's answer that a model gets to see."""


def converse(task: Task, client: Client, model: str, result: Answer) -> None:
    """Run the loop until `submit` is accepted, the turns are over, or the model stops calling tools."""
    settings = task.spec.get("llm") or {}
    turns = int(settings.get("max_turns", 20))
    messages = first_messages(task, agent=True)
    toolbox = Toolbox(task)
    repairs = int(settings.get("repair_attempts", 2))
    try:
        for turn in range(turns):
            request = request_of(task, model, messages, tools=TOOLS)
            message, finish = first_choice(client.ask(request, task.candidate))
            calls = message.get("tool_calls") or []
            if not calls:
                problem = "the answer was cut at the token limit" if finish == "length" else "no tool was called"
                client.transcript.append({"event": "refused", "reason": problem})
                repairs -= 1
                if repairs < 0:
                    result.reason = f"no usable answer: {problem}"
                    return
                messages = [
                    *messages,
                    {"role": "assistant", "content": message.get("content") or "(empty)"},
                    {"role": "user", "content": f"{problem}; call a tool, or `submit` your edits."},
                ]
                continue
            messages = [
                *messages,
                {
                    "role": "assistant",
                    "content": message.get("content"),
                    "tool_calls": [_plain(call) for call in calls],
                },
            ]
            for call in calls:
                name, arguments, fault = _arguments(call)
                if fault is None and name == "submit":
                    fault = _submit(task, result, arguments, final=turn == turns - 1 or repairs <= 0)
                    if fault is None:
                        client.transcript.append({"event": "submitted", "title": result.title})
                        return
                    repairs -= 1
                text = fault if fault is not None else toolbox.call(name, arguments)
                text = str(redacted(text))[:LONGEST_RESULT]
                client.transcript.append(
                    {"event": "tool", "name": name, "arguments": redacted(arguments), "result": text, "turn": turn}
                )
                messages = [*messages, {"role": "tool", "tool_call_id": call["id"], "content": text}]
        result.reason = f"nothing was submitted in {turns} turns"
    finally:
        toolbox.close()


def _plain(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
    }


def _arguments(call: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """(tool, arguments, problem) of a call; wrong arguments go back to the model as a tool's answer."""
    name = str((call.get("function") or {}).get("name"))
    schema = next((tool["function"]["parameters"] for tool in TOOLS if tool["function"]["name"] == name), None)
    if schema is None:
        return name, {}, f"error: there is no tool {name!r}"
    try:
        value = json.loads(call["function"].get("arguments") or "{}")
    except ValueError as error:
        return name, {}, f"error: the arguments are no JSON ({error})"
    from jsonschema import Draft202012Validator

    for problem in Draft202012Validator(schema).iter_errors(value):
        where = ".".join(str(part) for part in problem.absolute_path) or "(arguments)"
        return name, {}, f"error: {where}: {problem.message[:300]}"
    return name, value, None


def _submit(task: Task, result: Answer, value: dict[str, Any], final: bool) -> str | None:
    """Take the submitted patch; a problem that the model can repair comes back as text."""
    try:
        answers.validated(value)
        edits = apply_edits(lambda path: read(task, path), value["edits"], value["files"])
    except (answers.AnswerError, EditError) as error:
        return f"error: {error}"
    outside = out_of_scope(task, edits)
    if outside and not final:
        result.transcript.append({"event": "refused", "reason": f"not editable: {', '.join(outside)}"})
        return f"error: {', '.join(outside)}: not editable in this workload"
    accept(task, result, value, edits)
    return None
