"""Is the demo job ever faster than itself? Twenty A/A sessions through the pipeline's own program, on a quiet machine.

    python benchmarks/aa_twenty.py [--sessions 20] [--workload minigpt]

Takes about 40 s a session. At most one false `faster` or `slower` is allowed; the nominal rate is one in 32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.baseline import aa  # noqa: E402
from scripts.common.files import read_json, write_json  # noqa: E402
from scripts.common.schema import load_yaml  # noqa: E402
from scripts.source.environment import build  # noqa: E402
from scripts.source.source import materialise  # noqa: E402
from scripts.source.spec import CONFIG_SCHEMA, part, resolve, validated_config  # noqa: E402


def main() -> int:
    """Run the sessions, print one line each, then the summary; 1 where too many see a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--workload", default="minigpt")
    args = parser.parse_args()
    config = validated_config(load_yaml(CONFIG_SCHEMA.with_name("config.yaml")))
    spec = resolve(args.workload, None, config)
    answers, ratios, floors = [], [], []
    with tempfile.TemporaryDirectory(prefix="wholejob-aa-") as folder:
        place = Path(folder)
        env = build(spec)
        write_json(place / "spec.json", "wholejob/spec@1", part(spec, "aa"))
        write_json(place / "env.json", "wholejob/env@1", env)
        write_json(place / "source.json", "wholejob/source@1", materialise(spec, env))
        print(f"{'session':>7} {'ratio':>7} {'interval':>17} {'busy runs':>9}  answer")
        for number in range(args.sessions):
            output = place / str(number) / "aa.json"
            words = [word for kind in ("spec", "source", "env") for word in (f"--{kind}", str(place / f"{kind}.json"))]
            aa.main([*words, "-o", str(output)])
            found = read_json(output, "aa")
            estimate = found["estimate"]
            answers.append(found["answer"])
            ratios.append(estimate["ratio"])
            floors.append(estimate["high"] / estimate["low"])
            span = f"{estimate['low']:.3f} to {estimate['high']:.3f}"
            print(
                f"{number:7} {estimate['ratio']:7.3f} {span:>17} {found['machine']['busy']:9}  {found['answer']}",
                flush=True,
            )
    false = sum(answer in ("faster", "slower") for answer in answers)
    metrics = {"sessions": args.sessions, "false": false, "ratios": ratios, "widest": max(floors)}
    bars = {"at most one false difference in twenty": false <= max(1, args.sessions // 20)}
    ok = all(bars.values())
    print(json.dumps({"bench": "aa_twenty", "metrics": metrics, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
