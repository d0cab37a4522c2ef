"""Machines as data: presets of published ones, files of one's own, and rates measured on this one."""
