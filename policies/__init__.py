"""The core: words, state tables and every decision as a pure function.

Nothing here does I/O, reads a clock, draws a random number or knows a backend. Instants and durations are integer
milliseconds, memory is bytes, accelerators are thousandths of a card, money is micro-dollars.
"""
