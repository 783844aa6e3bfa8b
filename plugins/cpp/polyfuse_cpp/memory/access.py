"""Loads and stores as C++ text: whole vectors, steps, tiles, gathers, and the elements of one scalar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Load, Store
from polyfuse.kit import fits_i32_throughout
from polyfuse.symbolic import IndexLike, axis, coefficient, free_axes
from polyfuse_cpp.loops.scope import InterleavedStores, Scope
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.lanes import lane_index, lane_offsets, lane_parts, lane_rise

_MANY_GATHERS = 8
"""Gathers with one index from which taking its lanes out of a vector once costs little."""


@dataclass
class MemoryScope(Scope):
    """A level of the loop nest that knows how to reach memory."""

    def _load(self, stmt: Load) -> None:
        buffer, index, indirect, masked = stmt.buffer, stmt.index, stmt.indirect, stmt.mask is not None
        extra = stmt.args[len(indirect) :]
        if not self._by_lane(buffer, index, indirect) and not (masked and self._is_vector(*extra)):
            texts = []
            for copy in self._spread(*stmt.args):
                address = f"{buffer} + {self._plain(index, self._indirect_names(indirect, copy))}"
                text = f"load<Sca>({address})"
                if masked:
                    text = (
                        f"({self.text(extra[0], False, copy)} ? {text} : {self.text(extra[1], False, copy)})"
                    )
                texts.append(text)
            self._bind(stmt, False, texts)
            return
        texts = []
        for copy in range(self.copies):
            mask = extra[0] if masked and self.env[extra[0]].vector else None
            text = self._vector_load(stmt, copy, mask)
            if masked and (mask is None or not self._is_zero(extra[1])):
                other = self.text(extra[1], True, copy)
                if mask is None:
                    text = f"({self.text(extra[0], False, copy)} ? {text} : {other})"
                else:
                    text = f"where({self.text(mask, True, copy)}, {text}, {other})"
            texts.append(text)
        self._bind(stmt, True, texts)

    def _by_lane(self, buffer: str, index: IndexLike, indirect: Sequence[str]) -> bool:
        """Whether an access goes to another element in every lane."""
        if self._is_local(buffer) or self._is_vector(*indirect):
            return True
        return self.lane is not None and self.lane in free_axes(index)

    def _is_local(self, buffer: str) -> bool:
        """Whether a buffer is scratch that has an element for every lane."""
        return buffer in self.facts.row_buffers and self.local_lanes > 1

    def _vector_load(self, stmt: Load, copy: int, mask_name: str | None) -> str:
        """A load into a vector; lanes where the mask (a vector) is false give zero."""
        buffer, index, indirect = stmt.buffer, stmt.index, stmt.indirect
        pointer, names = buffer, self._indirect_names(indirect, copy)
        mask = self._mask(mask_name, copy)
        if id(stmt) in self.tiles:
            return self.tiles[id(stmt)][copy]
        if self._is_local(buffer):
            element = f"({index_text(index, names)}) * {self.local_lanes} + {copy * self.lanes}"
            return f"load<Vec>({pointer} + {element})"
        if not self._by_lane(buffer, index, indirect):
            self.features.add("kernel")
            address = f"{pointer} + {self._plain(index, names)}"
            return f"load_if<Vec>({address}, {mask})" if mask_name else f"splat<Vec>(load<Sca>({address}))"
        shape, at = self._shape(index, indirect), self.at_copy(index, copy)
        address = f"{pointer} + {self._plain(at, names)}"
        if isinstance(shape, int) and shape == 1:
            if mask_name:
                self.features.add("kernel")
                return f"load_masked<Vec>({address}, {mask})"
            return f"load_n<Vec>({address}, {self.tail})" if self.tail else f"load<Vec>({address})"
        around = lane_offsets(at, self.lane or "", self.lanes) if not self._is_vector(*indirect) else ()
        if around:
            self.features.add("window")
            pattern = ", ".join(map(str, around))
            return f"load_window<Vec, {pattern}>({address}{f', {mask}' if mask else ''})"
        if isinstance(shape, int) and shape == -1 and mask:
            self.features.add("window")
            return f"load_back<Vec>({address}, {mask})"
        if shape is not None and not mask_name:
            step = index_text(shape)
            if self.tail:
                return f"load_strided_n<Vec>({address}, {step}, {self.tail})"
            if shape == -1:
                self.features.add("window")
                return f"load_back<Vec>({address})"
            return f"load_strided<Vec>({address}, {step})"
        near = "" if mask_name else self._near(buffer, at, indirect)
        if near:
            self.features.add("window")
            return f"load_near<Vec>({pointer}, {near}, {self._gather_index(at, indirect, copy)})"
        self.features.add("gather")
        lanes = self._gathered(pointer, at, indirect, copy)
        if mask:
            return f"gather({lanes}, {mask})"
        return f"{self._gather_name(indirect)}({lanes})"

    def _gather_name(self, indirect: Sequence[str]) -> str:
        """The function that takes lanes from anywhere, by what is known of their index."""
        if self.facts.loaded.isdisjoint(indirect):
            return "gather_near"
        along = self.repeated
        same = along and not any(along in self.facts.depends[name] for name in indirect)
        return "gather_again" if same and self.facts.points([along]) >= _MANY_GATHERS else "gather"

    def _near(self, buffer: str, at: IndexLike, indirect: Sequence[str]) -> str:
        """Text of the first and the last index of all lanes, where these rise by less than two vectors."""
        if indirect or self.lane is None or self.lanes < 8 or self.facts.memory[buffer].itemsize > 4:
            return ""
        rise = lane_rise(at, self.lane, self.lanes - 1)
        if rise is None or rise >= 2 * self.lanes:
            return ""
        last = f"({self.lane} + {f'{self.tail} - 1' if self.tail else self.lanes - 1})"
        return f"{index_text(at)}, {index_text(at, {self.lane: last})}"

    def _is_zero(self, name: str) -> bool:
        found = self.env[name]
        return not found.vector and found.texts[0] in ("f32(0.0)", "f64(0.0)", "false", f"{found.dtype}(0)")

    def _mask(self, name: str | None, copy: int) -> str:
        """Text of the lanes that may touch memory; empty for all of them."""
        tail = f"first_n<Vec>({self.tail})" if self.tail else ""
        if name is None:
            return tail
        chosen = self.text(name, True, copy)
        return f"bitwise_and({chosen}, {tail})" if tail else chosen

    def _indirect_names(self, indirect: Sequence[str], copy: int = 0) -> dict[str, str]:
        return {
            f"@{k}": self.text(name, False, copy, narrow=True)
            for k, name in enumerate(indirect)
            if not self.env[name].vector
        }

    def _plain(self, index: IndexLike, names: Mapping[str, str]) -> str:
        return f"({index_text(index, names)})" if names else index_text(index)

    def _shape(self, index: IndexLike, indirect: Sequence[str]) -> IndexLike | None:
        """The step in elements from lane to lane; None where it is not constant."""
        if self._is_vector(*indirect):
            return None
        return coefficient(index, self.lane or "")

    def _gather_index(self, at: IndexLike, indirect: Sequence[str], copy: int) -> str:
        kind = "i32" if fits_i32_throughout(at) else "i64"
        names = self._indirect_names(indirect, copy)
        for k, name in enumerate(indirect):
            found = self.env[name]
            if found.vector and not found.narrow and kind == "i32" and index_text(at) == f"@{k}":
                self.features.add("gather")
                return f"gather_index({self.text(name, True, copy)})"
            if found.vector:
                text = self.text(name, True, copy, narrow=True)
                held = "i32" if found.narrow else "i64"
                names[f"@{k}"] = text if held == kind else f"cast<{kind}>({text})"
        vectors = frozenset(f"@{k}" for k, name in enumerate(indirect) if self.env[name].vector)
        self.features.add("kernel")
        return lane_index(at, self.lane or "", kind, names, vectors)

    def _gathered(self, pointer: str, at: IndexLike, indirect: Sequence[str], copy: int) -> str:
        """Where lanes have addresses of their own: what these have in common, and how far each is from it."""
        vectors = {f"@{k}" for k, name in enumerate(indirect) if self.env[name].vector}
        common, apart = lane_parts(at, frozenset({self.lane or "", *vectors}))
        base = self._plain(common, self._indirect_names(indirect, copy))
        start = pointer if base == "0" else f"{pointer} + {base}"
        return f"{start}, {self._gather_index(apart, indirect, copy)}"

    def _store(self, stmt: Store) -> None:
        if self.lane is not None and id(stmt) in self.interleaved:
            if stmt is self.interleaved[id(stmt)].stores[-1]:
                self._store_interleaved(self.interleaved[id(stmt)])
            return
        if stmt.mode == CHECK_MODE:
            self._check(stmt)
            return
        buffer, index, indirect, mask = stmt.buffer, stmt.index, stmt.indirect, stmt.mask
        vector = self._by_lane(buffer, index, indirect) or self._is_vector(*stmt.args)
        for copy in range(self.copies) if vector else self._spread(*stmt.args):
            guard = ""
            if mask is not None and not self.env[mask].vector:
                guard = f"if ({self.text(mask, False, copy)}) "
            if vector:
                text = self._vector_store(stmt, copy, None if guard else mask)
            else:
                address = f"{buffer} + {self._plain(index, self._indirect_names(indirect, copy))}"
                text = self._store_text(stmt, address, self.stored(stmt.value, False, copy))
            self.out.line(guard + text)

    def _check(self, stmt: Store) -> None:
        """A store to a status: whether any lane makes it is asked first, and hardly ever true."""
        limited = (name for name, check in self.checks.items() if check.store is stmt and name in self.env)
        if any(self.env[name].checked for name in limited):
            return
        self.features.add("check")
        assert stmt.mask is not None
        value, mask = stmt.value, stmt.mask
        vector = self._is_vector(value, mask)
        for copy in range(self.copies) if vector else self._spread(value, mask):
            said = self.stored(value, vector, copy)
            status = f"{stmt.buffer} + {index_text(stmt.index)}"
            wrong = self._mask(mask, copy) if vector else self.text(mask, False, copy)
            self.out.line(f"check({status}, {said}, {wrong});")

    def _store_interleaved(self, group: InterleavedStores) -> None:
        """Write the vectors of several stores to contiguous memory."""
        self.features.add("interleave")
        buffer, index = group.stores[0].buffer, group.stores[0].index
        count = len(group.stores)
        for copy in range(self.copies):
            values = ", ".join(self.stored(s.value, True, copy) for s in group.stores)
            address = f"{buffer} + {index_text(self.at_copy(index, copy))}"
            here = axis(self.lane or "", self.facts.sizes[self.lane or ""]) * count
            if group.end is not None:
                rest = index_text(group.end - self.at_copy(here, copy))
                self.out.line(f"store_interleaved_n({address}, {rest}, {values});")
            elif self.tail:
                self.out.line(f"store_interleaved_n({address}, {count} * {self.tail}, {values});")
            else:
                streams = id(group.stores[0]) in self.streaming
                whole = f"stream_interleaved({self.past}, " if streams else "store_interleaved("
                self.out.line(f"{whole}{address}, {values});")

    def stored(self, name: str, vector: bool, copy: int) -> str:
        """A value on its way to memory: a half float is not rounded first, for the store does it."""
        found = self.env[name]
        text = found.at(copy)
        if found.narrow:
            text = f"cast<i64>({text})"
        return f"splat<Vec>({text})" if vector and not found.vector else text

    def _store_text(self, stmt: Store, address: str, value: str, count: str = "") -> str:
        if stmt.mode == "set":
            if count:
                return f"store_n({address}, {value}, {count});"
            if id(stmt) in self.streaming:
                return f"stream({address}, {value}, {self.past});"
            return f"store({address}, {value});"
        self.features.add("update")
        alone = self._alone(stmt)
        if count:
            return f"update_n<mode_{stmt.mode}>({address}, {value}, {count}, {alone});"
        return f"update<mode_{stmt.mode}>({address}, {value}, {alone});"

    def _alone(self, stmt: Store) -> str:
        return "true" if id(stmt) in self.exclusive else "alone"

    def _vector_store(self, stmt: Store, copy: int, mask_name: str | None) -> str:
        buffer, index, indirect, mode = stmt.buffer, stmt.index, stmt.indirect, stmt.mode
        pointer, names = buffer, self._indirect_names(indirect, copy)
        text = self.stored(stmt.value, True, copy)
        if id(stmt) in self.tiles:
            return f"{self.tiles[id(stmt)][copy]} = {text};"
        if self._is_local(buffer):
            position = f"{pointer} + ({index_text(index, names)}) * {self.local_lanes} + {copy * self.lanes}"
            return self._store_text(stmt, position, text)
        at, by_lane = self.at_copy(index, copy), self._by_lane(buffer, index, indirect)
        shape = self._shape(index, indirect) if by_lane else None
        address = f"{pointer} + {self._plain(at, names)}"
        contiguous = isinstance(shape, int) and shape == 1
        if mask_name is None and contiguous:
            return self._store_text(stmt, address, text, self.tail or "")
        if mask_name is None and mode == "set" and shape is not None:
            step = index_text(shape)
            if self.tail:
                return f"store_strided_n({address}, {text}, {step}, {self.tail});"
            return f"store_strided({address}, {text}, {step});"
        mask = self._mask(mask_name, copy)
        if contiguous and mode == "set":
            self.features.add("kernel")
            return f"store_masked({address}, {text}, {mask});"
        lanes = (
            self._gathered(pointer, at, indirect, copy)
            if by_lane
            else f"{pointer}, splat<Vec>(i64({self._plain(at, names)}))"
        )
        mask = mask or "splat<Vec>(true)"
        if mode == "set":
            self.features.add("gather")
            return f"scatter({lanes}, {text}, {mask});"
        self.features.add("update")
        return f"update_at<mode_{mode}>({lanes}, {text}, {mask}, {self._alone(stmt)});"
