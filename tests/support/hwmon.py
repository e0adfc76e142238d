"""The part of sysfs in which kernel drivers show Intel's boards and the rails of Jetsons."""


class IntelBoard:
    """A board on the PCI bus, as card N of the folder ``drm``.

    Args:
        root: Folder that stands for sysfs.
        address: Address on the bus.
        driver: Name of its kernel driver.
        counter: Name of its counter; empty for none.
    """

    def __init__(self, root, address, driver, counter="energy1_input"):
        folder = root / "devices" / address / "hwmon" / "hwmon4"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{driver}\n")
        cards = root / "drm"
        cards.mkdir(exist_ok=True)
        card = cards / f"card{len(list(cards.iterdir()))}"
        card.mkdir()
        (card / "device").symlink_to(root / "devices" / address)
        self.counter = folder / counter if counter else None
        if counter:
            self.count(0)

    def count(self, microjoules):
        """Set the counter."""
        self.counter.write_text(f"{microjoules}\n")

    def count_at(self, clock, seconds, microjoules):
        """Set the counter at a time."""
        clock.call_at(seconds, lambda: self.count(microjoules))


def show_rails(root, **rails):
    """Show an INA3221 with these rails: name to millivolts and milliamperes."""
    folder = root / "hwmon" / "hwmon0"
    folder.mkdir(parents=True)
    (folder / "name").write_text("ina3221\n")
    for channel, (name, (millivolts, milliamperes)) in enumerate(rails.items(), 1):
        (folder / f"in{channel}_label").write_text(f"{name}\n")
        (folder / f"in{channel}_input").write_text(f"{millivolts}\n")
        (folder / f"curr{channel}_input").write_text(f"{milliamperes}\n")
