"""Delivery of alerts: a short-lived child that speaks Apprise, one receiver at a time."""
