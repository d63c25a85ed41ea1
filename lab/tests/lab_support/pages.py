"""The pages of `layernorm play` without a browser."""

import asyncio

import pytest


def simulated(networks, drive):
    """What `drive(user)` does with the pages."""
    pytest.importorskip("nicegui")
    from nicegui.testing.user_simulation import user_simulation

    from layernorm_lab.play import pages

    async def whole():
        async with user_simulation(lambda: pages.root(networks)) as user:
            await user.open("/")
            await drive(user)

    asyncio.run(whole())
