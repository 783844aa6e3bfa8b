"""A thread that compiles when the interpreter ends leaves before it is taken apart."""

from __future__ import annotations

import threading

from polyfuse.torch_compat.captures import ending


def test_a_thread_that_compiles_leaves():
    """Also one that swallows the exception the first time; one that does not compile gets none."""
    begun, left, interrupted = threading.Semaphore(0), [], threading.Event()

    def compile_in(kind: str) -> None:
        try:
            with ending.left_at_the_end():
                begun.release()
                if kind == "swallows":
                    try:
                        while True:
                            pass
                    except SystemExit:
                        interrupted.set()
                while True:
                    pass
        except SystemExit:
            left.append(kind)

    def wait() -> None:
        begun.release()
        interrupted.wait()
        left.append("waits")

    threads = [threading.Thread(target=compile_in, args=(kind,)) for kind in ("leaves", "swallows")]
    threads.append(threading.Thread(target=wait))
    for thread in threads:
        thread.start()
        begun.acquire()
    ending._end()
    for thread in threads:
        thread.join(10)
    assert sorted(left) == ["leaves", "swallows", "waits"]


def test_the_main_thread_is_not_interrupted():
    with ending.left_at_the_end():
        ending._end()
