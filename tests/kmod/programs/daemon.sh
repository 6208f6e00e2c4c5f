#!/bin/busybox sh
# shellcheck shell=dash
# The daemon in the guest: daemon.py.
exec in-system /usr/bin/python3 /repo/tests/kmod/daemon.py
