"""Objects that the cluster tests host in real Ray actors."""

import asyncio
import os
import sys
import time


class Target:
    """Synchronous methods, as a learner rank has them."""

    def __init__(self, number):
        self.number = number
        print(f"target {number} is up", flush=True)

    def add(self, other):
        return self.number + other

    def environment(self, name):
        return os.environ.get(name)

    def modules(self):
        return sorted(sys.modules)

    def fail(self):
        raise ValueError(f"target {self.number} does not like this")

    def hang(self):
        time.sleep(60)

    def die(self):
        print("last words", flush=True)
        os._exit(7)

    def fail_or_hang(self):
        if self.number == 1:
            raise ValueError("rank 1 broke")
        time.sleep(60)


class AsyncTarget:
    """Coroutines and async generators, as an engine has them."""

    async def count(self, number):
        for i in range(number):
            await asyncio.sleep(0.01)
            yield i

    async def count_and_fail(self, number):
        for i in range(number):
            yield i
        raise ValueError("no more numbers")

    async def name(self):
        return "async"
