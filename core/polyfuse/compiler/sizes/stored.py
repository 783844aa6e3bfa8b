"""What the graph cache stores of a graph with classes of sizes, so that a later process can make further
programs of it.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from polyfuse.compiler.sizes.choosing import Program, chosen_by_size

if TYPE_CHECKING:
    from polyfuse.compiler.session import CompileSession
    from polyfuse.compiler.sizes.classes import ClassKey, SizeClasses
    from polyfuse.compiler.sizes.graphs import SizedGraph
    from polyfuse.runtime.module import CompiledModule
    from polyfuse.runtime.sized import SizedPrograms


@dataclass(frozen=True)
class SizedRecord:
    """A graph of all sizes.

    Attributes:
        name: of the graph, for messages.
        classes: of its sizes.
        graph: the graph without its objects, and who generates its nodes, packed.
        programs: records of those that were made ahead, beside the first.
    """

    name: str
    classes: SizeClasses
    graph: bytes
    programs: Mapping[ClassKey, object]

    def chosen(
        self,
        first: CompiledModule,
        objects: Mapping[str, Any],
        session: CompileSession,
        revive: Callable[[Any], CompiledModule],
    ) -> SizedPrograms[Program]:
        """Chooses among its programs.

        Args:
            first: the program that the record was made with.
            objects: what its programs refer to.
            revive: makes a stored program callable.
        """

        seen = self.classes.noted

        def noting(program: CompiledModule) -> CompiledModule:
            program.namespace["SEEN"] = seen
            return program

        def compiled(key: ClassKey, sizes: tuple[Any, ...]) -> Program:
            if key in self.programs:
                return noting(revive(self.programs[key]))
            from polyfuse.compiler.stages import compile_sizes

            return noting(compile_sizes(self._unpacked(objects, session), key, sizes, session, seen))

        return chosen_by_size(self.classes, noting(first), compiled, None, self.name, seen)

    def _unpacked(self, objects: Mapping[str, Any], session: CompileSession) -> SizedGraph:
        from polyfuse.compiler.sizes.graphs import SizedGraph
        from polyfuse.schedule import Claims

        graph, names = pickle.loads(zlib.decompress(self.graph))
        backends = {node: session.plugins.backend(name) for node, name in names.items()}
        graph = replace(graph, objects=dict(objects))
        return SizedGraph(Claims(graph, backends, (), ()), self.classes)


def sized_record(sized: SizedGraph, programs: Mapping[ClassKey, object]) -> SizedRecord:
    """What is stored of a graph, with the programs that were made ahead."""
    claims = sized.claims
    names = {node: backend.name for node, backend in claims.backends.items()}
    data = pickle.dumps((replace(claims.graph, objects={}), names))
    return SizedRecord(claims.graph.name, sized.classes, zlib.compress(data, 1), programs)
