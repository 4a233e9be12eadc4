"""TPC-C's New-Order and Payment alone, half of each: both write the rows of a district."""

from __future__ import annotations

import dataclasses

from field.loads.base import INTERACTIVE
from field.loads.tpcc import MIX, Tpcc


class NewOrderPayment(Tpcc):
    name = "new_order_payment"
    title = "TPC-C's New-Order and Payment, half of each"
    styles = (INTERACTIVE,)

    def scripts(self, style):
        return [dataclasses.replace(script, weight=1) for script in super().scripts(style)
                if script.name in ("new_order", "payment")]

    def problems(self, before, after, committed):
        return super().problems(before, after, {**dict.fromkeys(MIX, 0), **committed})
