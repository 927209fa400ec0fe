"""Machines that are processes of this one: real agents and members, virtual GPUs, notices as clouds give them."""
