"""The exported model as a service."""
