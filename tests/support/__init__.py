"""What several test modules share: waiting, fakes, builders."""
