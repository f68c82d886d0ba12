"""The socket browsers connect to."""

import socket

from moldau.cli.console import bound


def test_no_page_waits_for_a_word_about_its_first_piece() -> None:
    """Nagle's algorithm and delayed acknowledgements together cost 40 ms, for every page but a connection's first."""
    with bound("127.0.0.1", 0) as listener:
        listener.listen(1)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
