#!/bin/busybox sh
# shellcheck shell=dash
# The device's node as udev makes it of the rule that is delivered: node_group.py.
exec in-system /usr/bin/python3 /repo/tests/kmod/node_group.py
