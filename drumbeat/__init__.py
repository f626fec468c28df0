"""What coordinator, agent and SDK share: the protocol, durations, options, the form of logs."""
