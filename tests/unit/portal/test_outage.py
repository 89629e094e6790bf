import time

from headwater.portal import SystemClock


def test_the_system_clock_is_the_real_one() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() >= before + 0.001
    assert abs(clock.now() - time.time()) < 60
