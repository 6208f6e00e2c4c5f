#!/bin/busybox sh
# shellcheck shell=dash
# The unit tests of the pool provider "kmod", with the module that is loaded in place of the pretended one.
# Their models are /models.
CTN_TESTS_DIR=/ CTN_TEST_KMOD=real exec in-system /usr/bin/python3 /repo/tests/kmod/unit.py
