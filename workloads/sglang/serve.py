"""Answer batches of requests with SGLang's engine, offline.

    python serve.py --batches 8 --out runs/0
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)

    if args.device == "cpu":
        # The engine's own processes take it from there as well
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "stubs"), os.environ.get("PYTHONPATH")]))
        sys.path.insert(0, str(HERE / "stubs"))
    import sglang

    # The engine's processes are no children that a recorder follows: the steps are marked here, one a batch.
    parity = sys.modules.get("parity")
    engine = sglang.Engine(model_path=str(HERE / "model"), device=args.device, load_format="dummy", dtype="float32",
                           disable_overlap_schedule=True, max_total_tokens=8192, random_seed=0)
    with (out / "responses.jsonl").open("w", encoding="utf-8") as file:
        for index in range(args.batches):
            if parity:
                parity.step(index)
            prompts = [[rng.randrange(3, 259) for _ in range(rng.randint(8, 128))] for _ in range(args.batch)]
            answers = engine.generate(input_ids=prompts, sampling_params={
                "temperature": 0.0, "max_new_tokens": args.new_tokens, "ignore_eos": True})
            for answer in answers:
                file.write(json.dumps({"tokens": answer["output_ids"]}) + "\n")
    engine.shutdown()


if __name__ == "__main__":  # the engine starts processes that import this file
    main()
