"""Write input.txt: plain English-like sentences from a small grammar, always the same ones."""

import random
from pathlib import Path

WHO = ["the miller", "a young sailor", "my aunt", "the old clockmaker", "a patient teacher", "the baker's son", "a grey cat",
       "the night watchman", "our neighbour", "a travelling tailor"]
DID = ["mended", "carried", "lost", "counted", "painted", "buried", "borrowed", "sold", "washed", "remembered"]
WHAT = ["a broken lantern", "seven copper kettles", "the harbour bell", "an unread letter", "the last of the apples",
        "a map of the marsh", "two wooden oars", "the kitchen door", "a basket of eels", "the long ladder"]
WHERE = ["by the river", "behind the church", "at the edge of the wood", "under the bridge", "in the empty market",
         "on the north road", "above the stable", "beside the mill pond"]
WHEN = ["before dawn", "in the first snow", "when the rain stopped", "after supper", "on a windless day", "at low tide"]
JOIN = ["and then", "because", "although", "so", "until", "while"]


def sentence(rng):
    def clause():
        return f"{rng.choice(WHO)} {rng.choice(DID)} {rng.choice(WHAT)} {rng.choice(WHERE)}"

    text = clause()
    while rng.random() < 0.4:
        text += f" {rng.choice(JOIN)} {clause()}"
    if rng.random() < 0.6:
        text += f" {rng.choice(WHEN)}"
    return text[0].upper() + text[1:] + rng.choice([".", ".", ".", "!", "?"])


if __name__ == "__main__":
    rng = random.Random(0)
    lines = [" ".join(sentence(rng) for _ in range(rng.randint(2, 5))) for _ in range(5000)]
    Path(__file__).with_name("input.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
