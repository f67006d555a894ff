"""Runs the little PTX of the top-k kernel without a GPU: one program's threads, in numpy.

Only the instructions that it uses are known; others are an error. Threads that part wait for each
other where they meet again, as on a GPU; so do those at a barrier. What two warps do to the same
word of shared memory between two barriers, other than both adding to it, is an error, too.
"""

# Methods named after instructions take operands that not all of them look at.
# ruff: noqa: ARG002

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Flags = NDArray[np.bool_]
WARP = 32
STEPS = 100_000
COMPARE: dict[str, Callable[[Words, Words], Flags]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[Words, Words], Words]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
TYPES = {"u32": np.uint32, "b32": np.uint32, "s32": np.int32, "f32": np.float32}


class PtxError(Exception):
    """The program does what it must not, or what is not known here."""


def _statements(code: str) -> list[str]:
    """Labels, declarations and instructions, one each."""
    text = re.sub(r"(\w+):", r"\1:;", code.strip()[1:-1])
    return [" ".join(part.split()) for part in text.split(";") if part.strip()]


class Program:
    """A block of PTX between braces, with operands `$0`, `$1`, … of 32 bits."""

    def __init__(self, code: str, threads: int) -> None:
        self.threads = threads
        self.lines: list[str] = []
        self.labels: dict[str, int] = {}
        self.places: dict[str, int] = {}
        size = 0
        for line in _statements(code):
            if line.startswith(".reg"):
                continue
            if found := re.fullmatch(r"\.shared (?:\.align \d+ )?\.b32 (\w+)\[(\d+)\]", line):
                size += -size % 16
                self.places[found[1]] = size
                size += 4 * int(found[2])
            elif line.endswith(":"):
                self.labels[line[:-1]] = len(self.lines)
            else:
                self.lines.append(line)
        self.size = size

    def run(self, operands: Sequence[Words], outputs: int) -> list[Words]:
        """Values of the first `outputs` operands afterwards; `operands` are those that follow."""
        return _Run(self, operands, outputs).outputs()


class _Run:
    def __init__(self, program: Program, operands: Sequence[Words], outputs: int) -> None:
        self.program, self.wanted = program, outputs
        n = program.threads
        self.registers: dict[str, Words] = {
            f"${outputs + i}": np.ascontiguousarray(given).view(np.uint32)
            for i, given in enumerate(operands)
        }
        self.flags: dict[str, Flags] = {}
        self.memory: Words = np.full(program.size // 4, 0xDEADBEEF, np.uint32)
        self.thread = np.arange(n)
        self.warp = self.thread // WARP
        self.at = np.zeros(n, np.int64)
        self.waits = np.zeros(n, np.bool_)
        self.mask: Flags = np.ones(n, np.bool_)
        self.forget()

    def forget(self) -> None:
        """A barrier: nobody's accesses matter any more."""
        words = len(self.memory)
        self.readers = np.zeros((words, self.warp[-1] + 1), np.bool_)
        self.writers = np.zeros_like(self.readers)
        self.adders = np.zeros_like(self.readers)

    def outputs(self) -> list[Words]:
        end = len(self.program.lines)
        for _ in range(STEPS):
            active = ~self.waits & (self.at < end)
            if not active.any():
                if not self.waits.any():
                    return [self.registers[f"${i}"] for i in range(self.wanted)]
                if not self.waits.all():
                    raise PtxError("some threads ended while others wait at a barrier")
                self.waits[:] = False
                self.forget()
                continue
            line = self.at[active].min()
            self.mask = active & (self.at == line)
            self.at[self.mask] += 1
            self.step(self.program.lines[line])
        raise PtxError("it does not end")

    def step(self, line: str) -> None:
        given = re.fullmatch(r"(?:@(\w+) )?([\w.]+) ?(.*)", line)
        if given is None:
            raise PtxError(f"unknown: {line}")
        if given[1]:
            self.mask = self.mask & self.flags[given[1]]
        name, *kinds = given[2].split(".")
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", given[3])
        method = getattr(self, f"do_{name}", None)
        if method is not None:
            method(kinds, *operands)
        elif name in ARITHMETIC:
            self.arithmetic(name, kinds, *operands)
        else:
            raise PtxError(f"unknown: {line}")

    def value(self, operand: str, kind: str = "b32") -> NDArray[np.generic]:
        """Of a register, a number, a symbol or a special register."""
        n, as_type = self.program.threads, TYPES[kind]
        special = {
            "%tid.x": self.thread, "%laneid": self.thread % WARP,
            "%lanemask_lt": (1 << (self.thread % WARP)) - 1,
        }  # fmt: skip
        if operand in special:
            return special[operand].astype(np.uint32)
        if operand in self.program.places:
            return np.full(n, self.program.places[operand], np.uint32)
        if operand.startswith("0f"):
            return np.full(n, int(operand[2:], 16), np.uint32).view(as_type)
        if re.fullmatch(r"-?\d+\.\d+", operand):
            return np.full(n, float(operand), np.float32)
        if re.fullmatch(r"-?\d+|0x[0-9a-f]+", operand):
            return np.full(n, int(operand, 0) & 0xFFFFFFFF, np.uint32).view(as_type)
        if operand not in self.registers:
            raise PtxError(f"read before it was written: {operand}")
        return self.registers[operand].view(as_type)

    def put(self, name: str, value: NDArray[np.generic]) -> None:
        """Into a register of those threads that take part."""
        before = self.registers.get(name, np.full(self.program.threads, 0xDEADBEEF, np.uint32))
        if value.dtype.itemsize != 4:
            raise PtxError(f"{name}: {value.dtype}")
        self.registers[name] = np.where(self.mask, value.view(np.uint32), before)

    def flag(self, name: str, value: Flags) -> None:
        before = self.flags.get(name, np.zeros(self.program.threads, np.bool_))
        self.flags[name] = np.where(self.mask, value, before)

    def arithmetic(self, name: str, kinds: list[str], to: str, a: str, b: str) -> None:
        kind = kinds[-1]
        if (name, kind) == ("and", "pred"):
            self.flag(to, self.flags[a] & self.flags[b])
            return
        left, right = self.value(a, kind), self.value(b, kind)
        with np.errstate(all="ignore"):
            self.put(to, ARITHMETIC[name](left, right))  # type: ignore[arg-type]

    def do_mov(self, kinds: list[str], to: str, a: str) -> None:
        self.put(to, self.value(a))

    def do_mad(self, kinds: list[str], to: str, a: str, b: str, c: str) -> None:
        self.put(to, self.value(a) * self.value(b) + self.value(c))  # type: ignore[operator]

    def do_fma(self, kinds: list[str], to: str, a: str, b: str, c: str) -> None:
        # The product of two numbers of float32 is one of float64.
        x, y, z = (self.value(each, "f32").astype(np.float64) for each in (a, b, c))
        with np.errstate(all="ignore"):
            self.put(to, (x * y + z).astype(np.float32))

    def do_rcp(self, kinds: list[str], to: str, a: str) -> None:
        with np.errstate(all="ignore"):
            # The GPU's may be off by a unit in the last place.
            found = np.float32(1) / self.flushed(self.value(a, "f32"))  # type: ignore[operator]
            self.put(to, self.flushed(np.nextafter(found, np.float32(np.inf))))

    def flushed(self, value: NDArray[np.generic]) -> NDArray[np.generic]:
        """Zero for what is smaller than normal numbers."""
        tiny = np.abs(value) < np.finfo(np.float32).tiny  # type: ignore[operator]
        return np.where(tiny, np.copysign(np.float32(0), value), value)  # type: ignore[call-overload, no-any-return]

    def do_prmt(self, kinds: list[str], to: str, a: str, b: str, by: str) -> None:
        """Bytes of a and b, chosen by the digits of a number."""
        both = self.value(a).astype(np.uint64) | self.value(b).astype(np.uint64) << np.uint64(32)
        found = np.zeros_like(both)
        for i in range(4):
            byte = int(by, 0) >> 4 * i & 7
            found |= (both >> np.uint64(8 * byte) & np.uint64(255)) << np.uint64(8 * i)
        self.put(to, found.astype(np.uint32))

    def do_popc(self, kinds: list[str], to: str, a: str) -> None:
        self.put(to, np.bitwise_count(self.value(a)).astype(np.uint32))  # type: ignore[arg-type]

    def do_setp(self, kinds: list[str], to: str, a: str, b: str, also: str = "") -> None:
        kind = kinds[-1]
        found = COMPARE[kinds[0]](self.value(a, kind), self.value(b, kind))  # type: ignore[arg-type]
        if also:
            found = found & self.flags[also] if kinds[1] == "and" else found | self.flags[also]
        self.flag(to, found)

    def do_testp(self, kinds: list[str], to: str, a: str) -> None:
        self.flag(to, np.isnan(self.value(a, "f32").astype(np.float64)))

    def do_not(self, kinds: list[str], to: str, a: str) -> None:
        self.flag(to, ~self.flags[a])

    def do_selp(self, kinds: list[str], to: str, a: str, b: str, by: str) -> None:
        self.put(to, np.where(self.flags[by], self.value(a), self.value(b)).astype(np.uint32))

    def whole_warps(self) -> NDArray[np.generic]:
        """The mask as [warps, 32]; threads that go alone have left a warp that needs them."""
        rows = self.mask.reshape(-1, WARP)
        if not (rows.all(1) | ~rows.any(1)).all():
            raise PtxError("a part of a warp at an instruction for the whole of it")
        return rows

    def do_redux(self, kinds: list[str], to: str, a: str, members: str) -> None:
        self.whole_warps()
        found = self.value(a, kinds[-1]).reshape(-1, WARP)
        reduce = {"max": np.max, "min": np.min, "add": np.sum}[kinds[1]]
        self.put(to, np.repeat(reduce(found, axis=1).astype(found.dtype), WARP))

    def do_vote(self, kinds: list[str], to: str, by: str, members: str) -> None:
        self.whole_warps()
        bits = self.flags[by].reshape(-1, WARP) << np.arange(WARP, dtype=np.uint64)
        self.put(to, np.repeat(bits.sum(1).astype(np.uint32), WARP))

    def do_shfl(self, kinds: list[str], to: str, a: str, by: str, bound: str, members: str) -> None:
        self.whole_warps()
        lane = self.thread % WARP
        steps = self.value(by).astype(np.int64)
        source = lane - steps if kinds[1] == "up" else steps % WARP
        inside = source >= 0
        found = self.value(a)[np.where(inside, source, lane) + WARP * self.warp]
        name, _, flag = to.partition("|")
        self.put(name, found)
        if flag:
            self.flag(flag, inside)

    def words(self, address: str) -> NDArray[np.int64]:
        """Which word of shared memory each thread means."""
        base, _, more = address.strip("[]").partition("+")
        found = self.value(base).astype(np.int64) + int(more or 0)
        if (found[self.mask] % 4).any() or (found[self.mask] // 4 >= len(self.memory)).any():
            raise PtxError(f"address {address}")
        return np.where(self.mask, found // 4, 0)

    def touch(self, where: NDArray[np.int64], how: str) -> None:
        """Note an access; raise PtxError if another warp's since the last barrier is in its way."""
        at, warps = where[self.mask], self.warp[self.mask]
        others = {"read": ["writers", "adders"], "add": ["writers", "readers"],
                  "write": ["writers", "readers", "adders"]}[how]  # fmt: skip
        for kind in others:
            seen = getattr(self, kind)[at].copy()
            seen[np.arange(len(at)), warps] = False
            if seen.any():
                raise PtxError(f"{how} of word {at[seen.any(1)][0]} beside another warp's {kind}")
        getattr(self, {"read": "readers", "write": "writers", "add": "adders"}[how])[at, warps] = 1

    def do_ld(self, kinds: list[str], to: str, address: str) -> None:
        for i, name in enumerate(to.strip("{}").split(",")):
            where = self.words(address) + i
            self.touch(where, "read")
            self.put(name.strip(), self.memory[np.where(self.mask, where, 0)])

    def do_st(self, kinds: list[str], address: str, given: str) -> None:
        for i, name in enumerate(given.strip("{}").split(",")):
            where = self.words(address) + i
            self.touch(where, "write")
            self.memory[where[self.mask]] = self.value(name.strip())[self.mask]

    def do_red(self, kinds: list[str], address: str, given: str) -> None:
        where = self.words(address)
        self.touch(where, "add")
        np.add.at(self.memory, where[self.mask], self.value(given)[self.mask])

    def do_atom(self, kinds: list[str], to: str, address: str, given: str) -> None:
        where = self.words(address)
        self.touch(where, "add")
        found = np.zeros(self.program.threads, np.uint32)
        for thread in np.flatnonzero(self.mask):
            found[thread] = self.memory[where[thread]]
            self.memory[where[thread]] += self.value(given)[thread]
        self.put(to, found)

    def do_bar(self, kinds: list[str], *numbers: str) -> None:
        self.waits |= self.mask

    def do_bra(self, kinds: list[str], label: str) -> None:
        self.at[self.mask] = self.program.labels[label]
