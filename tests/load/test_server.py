"""Servers, contenders and levels as they are given on the command line."""

from __future__ import annotations

import pytest

from outpace.bench.load.load_level import Concurrency, RequestRate, parse_levels
from outpace.bench.load.server import Server, line_up, parse_extra_bodies, parse_server


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://localhost:8000", "localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "localhost:8000", "http://localhost:8000/v1"),
        ("plain=https://host/api/v1", "plain", "https://host/api/v1"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_with_or_without_a_name(text, name, url):
    assert parse_server(text) == Server(name, url)


def test_metrics_are_beside_v1():
    assert parse_server("http://localhost:8000").metrics_url == "http://localhost:8000/metrics"
    assert parse_server("http://localhost:8000/other").metrics_url == "http://localhost:8000/other/metrics"


@pytest.mark.parametrize(
    "text",
    ["localhost:8000", "ftp://host", "plain=", "http://", "http://host:x", "http://[", "http://host?a=1"],
)
def test_what_is_not_the_url_of_a_server(text):
    with pytest.raises(ValueError, match="is not the URL of a server: give one such as http"):
        parse_server(text)


def test_a_password_is_refused():
    with pytest.raises(ValueError, match="use --api-key instead"):
        parse_server("http://me:secret@host")


def test_contenders():
    one, two = parse_server("a=http://a"), parse_server("b=http://b")
    bodies = parse_extra_bodies(["off={}", 'on={"speculate": true}'])
    assert [each.name for each in line_up([one, two], {})] == ["a", "b"]
    assert [(each.name, each.extra_body) for each in line_up([one], bodies)] == [
        ("off", {}),
        ("on", {"speculate": True}),
    ]
    assert [each.name for each in line_up([one, two], bodies)] == ["a, off", "a, on", "b, off", "b, on"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["on"], "--extra-body takes NAME=JSON"),
        (["on=[1]"], "--extra-body takes NAME=JSON"),
        (["={}"], "--extra-body takes NAME=JSON"),
        (["on={}", "on={}"], "names on twice"),
        (['on={"stream": false}'], "sets stream, which is needed to measure"),
    ],
)
def test_extra_bodies_that_cannot_be_used(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_extra_bodies(given)


def test_two_servers_of_one_name():
    with pytest.raises(ValueError, match="two servers are called a: name them"):
        line_up([parse_server("a=http://x"), parse_server("a=http://y")], {})


def test_levels():
    assert parse_levels("4,0.5,4", "16,1") == [
        RequestRate(0.5),
        RequestRate(4.0),
        Concurrency(1),
        Concurrency(16),
    ]
    assert [each.label for each in parse_levels("0.5", "1,2")] == ["0.5 requests/s", "1 stream", "2 streams"]


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        (("1,x", None), "--rates takes numbers separated by commas"),
        ((None, "1.5"), "--concurrency takes whole numbers"),
        (("0", None), "a load of 0 requests/s cannot be measured"),
        (("inf", None), "cannot be measured"),
        ((None, "-1"), "cannot be measured"),
    ],
)
def test_levels_that_cannot_be_measured(levels, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_levels(*levels)
