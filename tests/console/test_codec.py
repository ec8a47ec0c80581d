"""The history codec: every body comes back byte for byte; the first format of recordings is still read."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.history import first_format
from console.history.codec import Decoder, Encoder, pack, unpack
from tests.support.long_day import Day

# Pieces as they are in JSON, also cut and repeated ones, so that bodies align in part.
pieces = st.lists(st.sampled_from([b'{"a":1', b'"a":2', b'"b":[3', b"4", b":", b'"c":{"a":5}', b""]), max_size=8)
bodies = pieces.map(b",".join) | st.binary(max_size=20)


def coded(bodies: list[bytes]) -> Decoder:
    encoder = Encoder()
    return Decoder(unpack(pack([encoder.line(body) for body in bodies], 1)))


@settings(max_examples=150, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_any_bodies_come_back_in_any_order(bodies: list[bytes], random: object) -> None:
    decoder = coded(bodies)
    order = [*range(len(bodies)), *reversed(range(len(bodies)))]
    assert [decoder.body(index) for index in order] == [bodies[index] for index in order]


def test_a_day_of_snapshots_is_small() -> None:
    bodies = [msgspec.json.encode(health) for _, health in Day(slots=3).snapshots(30)]
    encoder = Encoder()
    lines = [encoder.line(body) for body in bodies]
    assert len(pack(lines, 6)) < sum(map(len, bodies)) / 8
    decoder = Decoder(lines)
    assert [decoder.body(index) for index in range(len(bodies))] == bodies


def test_a_line_names_what_changed_and_not_its_field() -> None:
    encoder = Encoder()
    encoder.line(b'{"uptime_s":10.5,"rows":3,"name":"x"}')
    assert len(encoder.line(b'{"uptime_s":11.0,"rows":3,"name":"x"}')) < 14
    encoder.begin_block()
    assert b"uptime_s" in encoder.line(b'{"uptime_s":11.0,"rows":3,"name":"x"}')


def test_the_first_format_is_read() -> None:
    lines = [
        b'[1,[0.0,[{"uptime_s":10.5,"lanes":[{"age_s":1.5,"rows":3}]}]]]',
        b'[2,[0.25,{"uptime_s":[10.75],"lanes":{"0":{"age_s":0,"rows":[4]}}}]]',
        b"[3,[0.0,{}]]",
    ]
    decoder = Decoder(lines)
    assert decoder.body(2) == decoder.body(1) == b'{"uptime_s":10.75,"lanes":[{"age_s":1.75,"rows":4}]}'
    assert decoder.body(0) == b'{"uptime_s":10.5,"lanes":[{"age_s":1.5,"rows":3}]}'
    assert [first_format.time_of(line) for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("change", [None, [], [1.0], [0.0, 0], [0.0, {"a": [1]}], [0.0, {"0": 1}], ["x", [1]]])
def test_what_is_no_change_of_the_first_format_is_refused(change: object) -> None:
    whole = msgspec.json.encode([1, [0.0, [["only", math.pi]]]])
    with pytest.raises((ValueError, LookupError)):
        Decoder([whole, msgspec.json.encode([2, change])]).body(1)
