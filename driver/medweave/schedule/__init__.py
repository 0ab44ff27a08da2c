"""Scheduled runs: calendar, state, change detection, notifications and the timers that start them."""
