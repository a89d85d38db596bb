"""Recompute the ε of a release from its card, without labelguard: python docs/verify.py CARD.json

Exit codes: 0 it holds, 1 it does not, 2 no readable card, 3 not checked here. Formulas: proofs/.
"""

import json
import re
import sys
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 30
EVENTS = {"rr": "rr", "props": "rr", "statistic": "statistic", "evaluation": "statistic"}
VERDICTS = ("HOLDS", "DOES NOT HOLD", "NO READABLE CARD", "CANNOT BE CHECKED")
CLOSE = mpf("1e-9")
ROLES = "human|user|question|q|instruction|system|assistant|ai|bot|answer|a|response"
NAMES = re.compile(
    rf"(?im)^[ \t]*[#*]* *(?:{ROLES})[* ]*:|<\|[^|\n]*\|>(?:{ROLES})?\b|\[/?INST\]|</?s>"
)
BELIEVED = "not checked: unit, two_units above one, clip, other counts, omitted policies, what ran"


def require(holds, message, code=1):
    if not holds:
        sys.exit(print(f"{VERDICTS[code]}: {message}") or code)


def ball(scale, d):
    """Return δ(x) of noise whose density is exp(−|y|/scale), in d components."""
    a, most = 1 / scale / 2, 1 / scale
    if d == 1:  # Laplace noise
        return lambda x: -mp.expm1(min(0, x, (x - most) / 2))
    ratio = (d - 1) / a * mp.besselk(mpf(d) / 2, a) / mp.besselk(mpf(d) / 2 - 1, a)
    peak = mp.acos((mp.sqrt(mpf(d - 2) ** 2 + 4 * a * a) - (d - 2)) / (2 * a)) if d > 2 else mpf(1)
    ends = [peak + step / mp.sqrt(d + a) for step in (-20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)]

    def density(x, t):
        bulk = (mp.sin(t) / mp.sin(peak)) ** (d - 2) * mp.exp(a * (mp.cos(t) - mp.cos(peak)))
        return -mp.expm1(x - most * mp.cos(t)) * bulk * (ratio + mp.sin(t) ** 2)

    def integral(x, end):
        return mp.quad(lambda t: density(x, t), [0, *(at for at in ends if 0 < at < end), end])

    def delta(x):
        if x < 0:  # the two means exchanged
            return -mp.expm1(x) + mp.exp(x) * delta(-x)
        return integral(x, mp.acos(x / most)) / total if x < most else mpf(0)

    total = integral(-mp.inf, mp.pi)
    return delta


def epsilon_of(policy):
    """Return the smallest ε at the δ of a policy, all its allowances used in any order."""
    allowances, delta = policy["allowances"], mpf(policy["delta"])
    losses, drawn, noise = [(mpf(0), mpf(1))], 0, lambda x: -mp.expm1(min(x, 0))
    if one := allowances.get("rr"):
        require(0 < int(one["threshold"]) <= 2**63 and one["allowed"] > 0, "no such blocks")
        flip, k = mpf(one["threshold"]) / 2**64, one["allowed"]  # blocks cost as many coins do
        each = mp.log((1 - flip) / flip)
        ways = [mp.binomial(k, j) * flip**j * (1 - flip) ** (k - j) for j in range(k + 1)]
        losses = [((k - 2 * j) * each, likely) for j, likely in enumerate(ways)]
    if one := allowances.get("statistic"):
        drawn, scale = one["allowed"], mpf(one.get("scale") or one["noise_multiplier"])
        require(drawn == 1 or (drawn > 1 and "scale" not in one), "no such releases")
        mu = mp.sqrt(drawn) / scale  # of Gaussian releases: how far apart two normals are
        noise = lambda x: mp.ncdf(mu / 2 - x / mu) - mp.exp(x) * mp.ncdf(-mu / 2 - x / mu)  # noqa: E731 it is read beside its formula
        noise = ball(scale, max(1, int(one.get("components", 1)))) if "scale" in one else noise
    delta -= drawn * (1 + mp.exp(policy["epsilon"])) / mpf(2) ** 100  # noise is of 256-bit numbers
    if not delta > 0:
        return mp.inf if drawn else losses[0][0]
    low, high = mpf(0), mpf(2**12)
    for _ in range(55):
        middle = (low + high) / 2
        spent = mp.fsum(likely * noise(middle - loss) for loss, likely in losses)
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high


def flip_of(threshold, labels):
    """Return (1 − c1)/2 and c2 of a block; likely answers change the best number t of labels."""
    low, ways, likely, best = threshold + 1, mpf(1), mpf(0), (mpf(0), 0)
    gain, base = 2**64 - 2 * low, low * mpf(2) ** labels
    for t in range(labels):
        likely += ways
        best = max(best, (gain * ways * (labels - t) / labels / (base + gain * likely), t))
        ways *= mpf(labels - t) / (t + 1)
    c1, t = best
    return (1 - c1) / 2, c1 if labels == 1 else c1 * (labels - 1 - 2 * t) / (labels - 1)


def check_noise(card, event, prices):
    """Refuse a release whose noise is not that which its policies pay for."""
    if event == "rr" and card["counts"]["rows"]:
        laws, thresholds = card["flip_probability"]["blocks"], [one["threshold"] for one in prices]
        each = sorted(law["flip_probability"] for law in laws for _ in range(law["rows"]))
        require(len(each) == card["counts"]["rows"], f"the blocks hold {len(each)} labels")
        middle, stated = len(each) // 2, card["flip_probability"]
        spread = {"min": each[0], "median": (each[~middle] + each[middle]) / 2, "max": each[-1]}
        fits = all(abs(stated[name] - flip) < CLOSE for name, flip in spread.items())
        require(fits, f"the flips of these blocks are {spread}")
        for law in laws:
            labels, stated = law["labels"], (law["flip_probability"], law["second_moment"])
            paid = (zip(stated, flip_of(int(one), labels), strict=True) for one in thresholds)
            fits = any(all(abs(a - b) < CLOSE for a, b in pairs) for pairs in paid)
            require(fits, f"blocks of {labels} labels flip {stated}, which no policy pays for")
    if event == "statistic":
        sums, scale = card["statistic"], mpf(card["statistic"]["noise_scale"])
        is_ball, least = sums["noise_kind"] == "ball", sums["noise_least_components"]
        name, d = "scale" if is_ball else "noise_multiplier", max(sums["components"], least)
        paid = [one for one in prices if name in one and abs(scale / mpf(one[name]) - 1) < CLOSE]
        fits = any(not is_ball or int(one["components"]) == least for one in paid)
        require(fits, f"{sums['noise_kind']} noise of {scale} is not what a policy pays for")
        require(sums["sensitivity"] > 2 * sums["clip"] * (1 - CLOSE), "sensitivity is below 2 clip")
        deviation = scale * sums["sensitivity"] * (mp.sqrt(d + 1) if is_ball else 1)
        require(sums["noise"] > deviation * (1 - CLOSE), "noise is less than scale × sensitivity")


def verify(card):
    """Print what a card claims beside what follows from it; refuse it where that is more."""
    privacy, event = card["privacy"], EVENTS.get(card["mechanism"])
    policies = event and privacy.get("policies")
    known = policies and all(EVENTS.get(n) == n for one in policies for n in one["allowances"])
    require(known, f"{card['mechanism']}, or a policy, has no closed form here", 3)
    require(privacy["adjacency"] == "replace_labels", "adjacency is not replace_labels")
    prices = [one["allowances"][event] for one in policies if event in one["allowances"]]
    uses = [card["budget"][name].get("max", 0) for name in ("used", "allowed")]
    uses.append(policies[-1]["allowances"][event]["allowed"])
    require(uses == sorted(uses), f"used, allowed and paid for are {uses}")
    said = privacy["accounting"].partition("priced together with ")[2].split(" and ")
    beside = [str(a["allowed"]) for n, a in policies[-1]["allowances"].items() if n != event]
    require([part.split()[0] for part in said if part] == beside, "more was priced")
    require(("unit_pairs" in card["counts"]) == (privacy["unit"] != "item"), "another unit")
    check_noise(card, event, prices)
    values, newly = [*map(epsilon_of, policies)], privacy.get("newly_charged", policies[-1])
    values += [values[-1], mp.fsum(values)]
    names = [*(f"policy {one['policy']}" for one in policies), "newly charged", "all policies"]
    for name, claim, value in zip(names, [*policies, newly, privacy], values, strict=True):
        claimed = f"{name}: claimed ε = {claim['epsilon']}, δ = {claim['delta']}"
        print(f"{claimed}; recomputed ε = {mp.nstr(value, 12)}")
        require(value <= mpf(claim["epsilon"]) * (1 + CLOSE), "this ε is larger than claimed")
    fits = newly["delta"] >= policies[-1]["delta"] * (1 - CLOSE)
    require(fits, f"newly charged: δ = {newly['delta']}, below that of the policy in force")
    two = privacy["two_units"] or privacy
    fits = all(two[name] >= privacy[name] * (1 - CLOSE) for name in ("epsilon", "delta"))
    require(fits, "two units together are promised less than one")
    total = mp.fsum(mpf(policy["delta"]) for policy in policies)
    require(total <= mpf(privacy["delta"]) * (1 + CLOSE), f"δ of all policies is {total}")
    passed = [name for name, most in privacy["ceiling"].items() if privacy[name] > most]
    require(not passed, f"the ceiling is passed: {passed}")


def spell(content):
    """Return the words of a text, or the messages of a chat, each with an end: without roles."""
    if isinstance(content, str):
        parts = NAMES.sub(" ", content).replace(":", " ").split()
    else:
        chat = ({**message, "role": "", "name": ""} for message in content)
        parts = (json.dumps(message, sort_keys=True) for message in chat)
    return "".join(part + "\0" for part in parts)


def count_told(rows):
    """Return how many prompts begin with another row's prompt and one of its responses."""
    prompts = {row["prompt"]: spell(json.loads(row["prompt"])) for row in rows}
    told, open_ones, count = set(), [], 0
    for row in rows:
        sides = (spell(json.loads(row[side])) for side in ("chosen", "rejected"))
        told |= {prompts[row["prompt"]] + side for side in sides if side}
    for text, is_prompt in sorted([(t, 0) for t in told] + [(t, 1) for t in prompts.values()]):
        while open_ones and not text.startswith(open_ones[-1]):
            open_ones.pop()
        count += bool(is_prompt and open_ones)
        open_ones += [text] * (not is_prompt)
    return count


def check_prompts(card, directory):
    """Refuse a release whose prompts tell labels, unless its card declares that they do not."""
    files = sorted(directory.glob("data*.parquet"))
    if card["privacy"].get("turns") == "independent" or not files:
        return "prompts" if not files else "that conversations went on independently of choices"
    import pyarrow.parquet

    names = ["prompt", "chosen", "rejected"]
    columns = [pyarrow.parquet.read_table(path, columns=names) for path in files]
    rows = [
        {name: json.dumps(value) for name, value in row.items()}
        for table in columns
        for row in table.to_pylist()
    ]
    count = count_told(rows)
    require(not count, f"{count} prompts go on with a response of another row, and tell its label")
    return "prompts against earlier releases"


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).is_dir():
        sys.exit(print("usage: python docs/verify.py CARD.json") or 2)
    try:
        stated = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        verify(stated)
        believed = check_prompts(stated, Path(sys.argv[1]).absolute().parent)
    except Exception as error:
        require(False, repr(error), 2)
    print(f"{BELIEVED}, {believed}", VERDICTS[0], sep="\n")
