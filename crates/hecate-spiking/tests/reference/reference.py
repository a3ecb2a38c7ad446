#!/usr/bin/env python3
"""A model of spiking networks in plain Python, written from the semantics alone, that the crate is compared with.

    reference.py run NETWORK.json...        write NETWORK.spikes.json beside each
    reference.py make FOLDER                write the networks of cases that `CASES` names
    reference.py convert TEXT NAME.json     rewrite a network of the line format (N, S, F, I, B) as JSON

Sums are Python's integers with 16 bits behind the point. A 32-bit float is a Python float that fits 32 bits: a sum or a
product of two of them, rounded to 64 and then to 32 bits, is the one that 32-bit arithmetic gives.
"""
import json
import math
import random
import struct
import sys

MEMORY, POWER, FATIGUE = 50_000_000, 1, 2
ONE = 1 << 16


# Floats are rounded after every operation, as a device with 32 bits does by itself.
def f32(x):
    # Rounded to a 32-bit float, and zero with its sign below the least normal one.
    x = struct.unpack("<f", struct.pack("<f", x))[0]
    return math.copysign(0.0, x) if 0 < abs(x) < 2.0**-126 else x


# A 32-bit float as the integer of its bits: files of spikes compare bits.
def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def word_of(neuron, burst):
    # PCG's permutation of the neuron and the burst, in 32 bits.
    mask = 0xFFFFFFFF
    s = ((neuron * 2654435761 + (burst & mask) * 1597334677) * 747796405 + 2891336453) & mask
    w = (((s >> ((s >> 28) + 4)) ^ s) * 277803737) & mask
    return (w >> 22) ^ w


def sum_to_f32(total):
    # Half to even at 24 bits, by integers.
    size, shift = abs(total), max(0, abs(total).bit_length() - 24)
    kept, rest = size >> shift, size & ((1 << shift) - 1)
    half = 1 << (shift - 1) if shift else 0
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1
    return math.copysign((kept << shift) / ONE, total) if total else 0.0


# A network in dictionaries and lists; neurons go by their ids.
class Network:
    def __init__(self, file):
        self.areas = {area["id"]: area for area in file["areas"]}
        self.neurons = [dict(neuron) for count, neuron in file["neurons"] for _ in range(count)]
        self.remembering = [area for count, area in file.get("memory", []) for _ in range(count)]
        self.power = f32(file.get("power", 0.0))
        self.out = {}
        for source, target, weight, psp, kind in file.get("synapses", []):
            self.out.setdefault(source, []).append([target, weight, psp, kind])
        # Rows by source, each ascending by target, as weights are listed.
        # Python sorts stably: synapses between the same two stay in their order.
        self.out = {source: sorted(row, key=lambda s: s[0]) for source, row in self.out.items()}
        self.made = {}
        self.mappings = file.get("plasticity", [])
        self.inputs = {}
        for burst, neuron, potential in file.get("inputs", []):
            self.inputs.setdefault(burst, []).append((neuron, f32(potential)))
        self.fatigue = file.get("fatigue", [])
        self.bursts = file.get("bursts", 0)
        # Potential, bursts to pass over, and times fired in a row, one a neuron.
        self.v = [0.0] * len(self.neurons)
        self.rc = [0] * len(self.neurons)
        self.row = [0] * len(self.neurons)
        # What fired in the last burst, with its potential, and the sets of all bursts.
        self.fired = {}
        self.past = []

    # The area of a neuron or memory neuron.
    def area(self, neuron):
        return self.remembering[neuron - MEMORY] if neuron >= MEMORY else self.neurons[neuron]["area"]

    # Ids of an area, memory neurons last.
    def of_area(self, area):
        ids = list(range(len(self.neurons))) + [MEMORY + i for i in range(len(self.remembering))]
        return [i for i in ids if self.area(i) == area]

    # Sums in fixed point of all that reaches a neuron; a neuron that is missing got nothing.
    def inject(self, burst):
        sums = {}

        # Python's integers have no end, so nothing overflows here.
        def add(neuron, amount):
            sums[neuron] = sums.get(neuron, 0) + amount

        for neuron, potential in self.inputs.get(burst, []):
            add(neuron, round(potential * ONE))
        # Power reaches one neuron in every burst, fatigue all of its area in some.
        for neuron in self.of_area(POWER)[:1]:
            add(neuron, round(self.power * ONE))
        if any(first <= burst <= last for first, last in self.fatigue):
            for neuron in self.of_area(FATIGUE):
                add(neuron, round(self.power * ONE))
        # What fired one burst ago is delivered now.
        for source, potential in self.fired.items():
            area = self.areas[self.area(source)]
            row = self.out.get(source, []) + self.made.get(source, [])
            for target, weight, psp, kind in row:
                size = weight * (round(min(max(potential, 0.0), 255.0)) if area.get("membrane_driven") else psp) * ONE
                # Areas that are not uniform share a potential among all synapses of a neuron.
                if not area["uniform"]:
                    # Half of the last bit rounds away from zero.
                    size = (2 * size + len(row)) // (2 * len(row))
                add(target, -size if kind else size)
        return sums

    # One neuron that something reached: its potential if it fires.
    def dynamics(self, i, given, burst):
        n = self.neurons[i]
        limit = n.get("fire_limit", 0)
        limited = limit not in (0, 65535)
        # Refractory: the input is lost and nothing leaks.
        if self.rc[i] > 0:
            self.rc[i] -= 1
            if self.rc[i] == 0 and limited and self.row[i] >= limit:
                self.row[i] = 0
            return None
        v = self.v[i] = f32(self.v[i] + given)
        if v >= f32(n["threshold"]) and (n.get("limit") is None or v <= f32(n["limit"])):
            # It fired too often in a row: it does not fire now, and nothing leaks.
            if limited and self.row[i] >= limit:
                self.row[i] = 0
                return None
            # Chance, but from 0.999 on it is certain.
            e = f32(n.get("excitability", 1.0))
            if e >= f32(0.999) or (e > 0 and f32(word_of(i, burst)) / 2.0**32 < e):
                self.v[i] = 0.0
                self.row[i] = min(self.row[i] + 1, 65535)
                snooze = n.get("snooze", 0) if limited and self.row[i] >= limit else 0
                self.rc[i] = min(n.get("refractory", 0) + snooze, 65535)
                return v
        # It did not fire: the row ends, and some of the potential leaks.
        if limited:
            self.row[i] = 0
        self.v[i] = f32(v * f32(1.0 - f32(n.get("leak", 0.0))))
        return None

    # Mappings learn one after the other, each from what the last one left.
    def learn(self):
        for of in self.mappings:
            window, form = of["window"], of["form"]
            if form == "exponential":
                self.learn_pairs(of, window)
            elif len(self.past) >= window:
                ((name, form),) = form.items()
                self.learn_window(of, self.past[-window:], form, name == "bidirectional")

    # The synapses of a mapping.
    def synapses(self, of):
        for source in self.of_area(of["source"]):
            for synapse in self.out.get(source, []) + self.made.get(source, []):
                if self.area(synapse[0]) == of["target"]:
                    yield source, synapse

    # Classic and bidirectional: all of the window adds, some of it takes away.
    def learn_window(self, of, past, form, makes):
        rise = min(max(form["constant"] * form["ltp"], 0), 255)
        fall = min(max(form["constant"] * form["ltd"], 0), 255)
        for source, synapse in self.synapses(of):
            ends = [fired for burst in past for fired in (source in burst, synapse[0] in burst)]
            if all(ends):
                synapse[1] = min(synapse[1] + rise, 255)
            elif any(ends):
                synapse[1] = max(synapse[1] - fall, 0)
        # What is missing between neurons that fired in all of the window is made.
        if not makes:
            return
        for source in self.of_area(of["source"]):
            for target in self.of_area(of["target"]):
                known = [s[0] for s in self.out.get(source, []) + self.made.get(source, [])]
                if target not in known and all(source in burst and target in burst for burst in past):
                    self.made.setdefault(source, []).append([target, rise, form["potential"], 0])
                    self.made[source].sort()

    # Exponential: pairs whose later spike is of this burst, furthest apart first.
    def learn_pairs(self, of, window):
        now = self.past[-1]
        for source, synapse in self.synapses(of):
            for apart in range(min(window, len(self.past)) - 1, 0, -1):
                then = self.past[-1 - apart]
                if synapse[0] in now and source in then:
                    synapse[1] = min(synapse[1] + round(255 * 0.01 * math.exp(-apart / 20)), 255)
                if source in now and synapse[0] in then:
                    synapse[1] = max(synapse[1] - round(255 * 0.012 * math.exp(-apart / 20)), 0)

    # One burst: what fired, ascending by id.
    def step(self, burst):
        for i, n in enumerate(self.neurons):
            if not n.get("accumulate", True):
                self.v[i] = 0.0
        sums = self.inject(burst)
        fired = {}
        # Zero sums count too: whatever reached a neuron lets it leak or fire.
        for i in sorted(sums):
            given = sum_to_f32(sums[i])
            v = given if i >= MEMORY else self.dynamics(i, given, burst)
            if v is not None:
                fired[i] = v
        self.fired = fired
        self.past.append(set(fired))
        self.learn()
        return [[i, v] for i, v in fired.items()]


# Runs a file and writes spikes, and the state after the last burst.
def run(path):
    net = Network(json.load(open(path)))
    fired = [[[i, bits(v)] for i, v in net.step(burst)] for burst in range(1, net.bursts + 1)]
    rows = [row for _, row in sorted(net.out.items())] if net.mappings else []
    result = {
        # Neuron, and its potential when it fired, as bits.
        "fired": fired,
        "potential": [bits(v) for v in net.v],
        "refractory": net.rc,
        "in_a_row": net.row,
        "weights": [synapse[1] for row in rows for synapse in row],
        "made": [[source] + synapse for source, row in sorted(net.made.items()) for synapse in row],
    }
    with open(path.replace(".json", ".spikes.json"), "w") as file:
        body = ",\n".join(f'"{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in result.items())
        file.write("{\n" + body.replace("]],[[", "]],\n[[") + "\n}\n")


# Lists have a line an element, so that a change of one is a change of one line.
def write(path, file):
    # As the crate writes it: one line an element.
    def field(name, value):
        if not isinstance(value, list):
            return f'"{name}": {json.dumps(value)}'
        return f'"{name}": [' + ",".join("\n" + json.dumps(x, separators=(",", ":")) for x in value) + "\n]"

    fields = [field(name, value) for name, value in file.items() if value != []]
    open(path, "w").write("{\n" + ",\n".join(fields) + "\n}\n")


# The line format has one line a neuron (N), synapse (S), area's flags (F), input (I) and number of bursts (B).
def convert(text, path):
    neurons, synapses, flags, inputs, bursts = [], [], {}, [], 0
    for line in open(text):
        t = line.split()
        if t[:1] == ["N"]:
            keys = ["threshold", "limit", "leak", "refractory", "excitability", "fire_limit", "snooze", "accumulate", "area"]
            n = dict(zip(keys, t[1:]))
            whole = {key: int(n[key]) for key in ("area", "refractory", "fire_limit", "snooze")}
            n.update(whole, **{key: float(n[key]) for key in ("threshold", "leak", "excitability")})
            n["accumulate"] = n["accumulate"] == "1"
            n.update(limit=float(n["limit"])) if n["limit"] != "max" else n.pop("limit")
            neurons.append([1, n])
        elif t[:1] == ["S"]:
            synapses.append([int(x) for x in t[1:]])
        elif t[:1] == ["F"]:
            flags[int(t[1])] = (t[2] == "1", t[3] == "1")
        elif t[:1] == ["I"]:
            inputs.append([int(t[1]), int(t[2]), float(t[3])])
        elif t[:1] == ["B"]:
            bursts = int(t[1])
    # Ids are implicit there: neurons are counted from 0 in the order of their lines.
    # Without any flag all areas are uniform; with one, those without are not.
    ids = sorted({n["area"] for _, n in neurons})
    flag = {i: flags.get(i, (not flags, False)) for i in ids}
    areas = [{"id": i, "uniform": flag[i][0], "membrane_driven": flag[i][1]} for i in ids]
    write(path, {"format": "hecate-spiking 1", "areas": areas, "neurons": neurons, "synapses": synapses,
                 "inputs": inputs, "bursts": bursts})


def case(name, seed):
    """A network of 60 neurons, and what the case is about."""
    r = random.Random(seed)
    # Areas 1 and 2 are those of power and fatigue.
    areas = [{"id": i, "uniform": r.random() < 0.5, "membrane_driven": i == 4} for i in (1, 2, 3, 4, 5)]
    neurons = []
    for i in range(60):
        neurons.append([1, {
            "area": 1 if i in (7, 9) else 2 if i % 20 == 3 else 3 if i < 30 else 4,
            "threshold": r.choice([1.0, 50.0, 400.0, 3000.0]), "leak": r.choice([0.0, 0.1, 0.5]),
            "refractory": r.choice([0, 0, 1, 3]), "excitability": r.choice([1.0, 0.7, 0.4]),
            "fire_limit": r.choice([0, 0, 2, 3]), "snooze": r.choice([0, 2]), "accumulate": r.random() < 0.6}])
    file = {"format": "hecate-spiking 1", "areas": areas, "power": 0.0, "neurons": neurons}
    # Synapses lead anywhere; a third of them takes away.
    ids = list(range(60))
    if name == "certain":
        # A generator without the border would let one in a thousand of them fail.
        for _, n in neurons:
            n.update(threshold=1.0, excitability=0.999, fire_limit=0, refractory=0)
    if name in ("power", "fatigue"):
        file["power"] = 37.25
    if name == "memory":
        file["memory"] = [[6, 5]]
        ids += [MEMORY + i for i in range(6)]
    file["synapses"] = [[s, r.choice(ids), r.randrange(256), r.randrange(256), int(r.random() < 0.35)]
                        for s in ids for _ in range(r.choice([1, 3, 5, 7]))]
    # Both directions and an area with itself, over windows of several lengths.
    if name in ("classic", "bidirectional", "exponential"):
        form = {"constant": 3, "ltp": 5, "ltd": 2}
        forms = {"classic": {"classic": form}, "bidirectional": {"bidirectional": {**form, "potential": 90}},
                 "exponential": "exponential"}
        pairs = [(3, 4, 2 if name != "exponential" else 25), (4, 3, 1 if name != "exponential" else 60), (3, 3, 3)]
        file["plasticity"] = [{"source": s, "target": t, "window": w, "form": forms[name]} for s, t, w in pairs]
    # One burst in three is silent, so that potentials leak, refractory neurons wait and rows end.
    every = 60 if name == "certain" else 12
    file["inputs"] = [[b, r.choice(ids) if every < 60 else i, r.choice([1.0, 60.0, 500.0, 5000.0, -200.0, 0.1])]
                      for b in range(1, 81) for i in range(r.choice([0, every, 2 * every])) if every < 60 or i < 60]
    file["fatigue"] = [[10, 30], [60, 61]] if name == "fatigue" else []
    file["bursts"] = 80
    return file


CASES = ["certain", "power", "fatigue", "memory", "classic", "bidirectional", "exponential"]

if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "run":
        [run(path) for path in paths]
    elif command == "convert":
        convert(*paths)
    elif command == "make":
        [write(f"{paths[0]}/{name}.json", case(name, seed)) for seed, name in enumerate(CASES)]
    else:
        sys.exit(__doc__)
