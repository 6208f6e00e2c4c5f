#!/bin/busybox sh
# shellcheck shell=dash
# What each provider costs.
exec in-system /usr/bin/python3 /repo/tests/kmod/table.py
