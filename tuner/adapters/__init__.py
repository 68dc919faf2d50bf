"""Reading what other people's trainers print: steps, batch, memory and failures from their logs."""
