"""Threads that have ended when their caller goes on, whatever Ctrl-C interrupts."""

import threading

__all__ = ["run_threads"]


def run_threads(functions, meanwhile, stop):
    """Calls functions, each in a thread of its own, and waits until all have returned.

    A signal raises KeyboardInterrupt in the main thread alone, at any place of this function, and
    more than one may come.

    Args:
        functions: of no argument; they return soon once `stop` is set.
        meanwhile: a function that is called first, about ten times a second and last, until there
            is an error.
        stop: a threading.Event, which the first error sets.

    Returns:
        The exceptions of the functions, of `meanwhile` and of signals.
    """
    errors, ended, wake = [], [], threading.Semaphore(0)

    def call(function):
        try:
            if not stop.is_set():  # a thread whose start() was interrupted may begin late
                function()
        except BaseException as error:
            errors.append(error)
            stop.set()
        finally:
            ended.append(function)
            wake.release()

    threads = [threading.Thread(target=call, args=(x,), daemon=True) for x in functions]
    is_begun = False
    while True:
        try:
            if not is_begun:
                is_begun = True
                meanwhile()
                for thread in threads:
                    thread.start()
            # Where Ctrl-C interrupts join(), Python 3.11 takes the thread for one that has ended.
            while len(ended) < sum(thread.ident is not None for thread in threads):
                wake.acquire(timeout=0.1)
                if not stop.is_set():
                    meanwhile()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            if not stop.is_set():
                meanwhile()
            found = tuple(errors)
            errors.clear()  # the frames of the errors hold it, and it holds them
            return found
        except BaseException as error:
            errors.append(error)
            stop.set()
