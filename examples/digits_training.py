"""Four PEs train one classifier of handwritten digits, each on its share of the images.

    mori run -n 4 python examples/digits_training.py              # on this machine
    mori run --hosts a:2,b:2 python examples/digits_training.py   # on two

Every PE (processing element, here a process) computes the gradient over its own images. The sum of
all gradients is what a single process would compute over all images, so that is what the PEs need,
after every epoch. They add them up in *symmetric memory*: blocks that each PE has at the same
offset of its heap, and that the others get from and put to by their own address of it.

Any number of PEs works. The program ends with a status other than 0 if a check at its end fails.
"""

import os
import time

# The heap must be large enough for two vectors of 5 KB; it is read at init.
os.environ.setdefault("MORI_SHMEM_HEAP_SIZE", "16M")
# In the CPU's memory, which numpy reads and writes, also where there is a GPU.
os.environ["MORI_SHMEM_BACKEND"] = "host"
# The PEs share the cores of this machine, so none of them starts more threads for its matrices.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from mori import shmem
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits

EPOCHS = 400
LEARNING_RATE = 1.0
SEED = 0


class GradientSum:
    """Adds a vector over all PEs, in two steps that share the work.

    First each PE adds up one part of the vector, getting that part from everyone. Then it puts
    its finished part to everyone. A barrier ends each step: nobody reads what is not there yet.
    """

    def __init__(self, length):
        self.me, self.n_pes = shmem.shmem_mype(), shmem.shmem_npes()
        self.seconds = 0.0  # spent here, waiting for other PEs included

        # Two blocks, at the same offset of every heap, and a numpy array over this PE's copies.
        item_bytes = np.dtype(np.float64).itemsize
        self.blocks = [shmem.shmem_malloc(length * item_bytes) for _ in range(2)]
        self.gradient, self.sum = (
            shmem.shmem_numpy(block, length, np.float64) for block in self.blocks
        )

        # This PE's part of both, and room for the part of another PE's gradient.
        part = np.array_split(np.arange(length), self.n_pes)[self.me]
        self.part_of_gradient, self.part_of_sum = (
            block + int(part[0]) * item_bytes if len(part) > 0 else block for block in self.blocks
        )
        self.theirs = np.empty(len(part))

    def __call__(self, gradient):
        """The sum of every PE's `gradient`, the same bits on each of them."""
        start = time.perf_counter()

        self.gradient[:] = gradient
        shmem.shmem_barrier_all()  # now all gradients are there

        # Always in the order of the PEs: adding floating-point numbers in another order rounds
        # differently.
        part_sum = np.zeros_like(self.theirs)
        for pe in range(self.n_pes):
            shmem.shmem_getmem(self.theirs, self.part_of_gradient, None, pe)
            part_sum += self.theirs
        for pe in range(self.n_pes):
            shmem.shmem_putmem(self.part_of_sum, part_sum, None, pe)
        shmem.shmem_barrier_all()  # now all parts of the sum are there

        self.seconds += time.perf_counter() - start
        return self.sum

    def free(self):
        for block in self.blocks:
            shmem.shmem_free(block)


def load_images():
    """Images (rows of 64 pixels and a 1) and digits (rows with one 1), to train and to test."""
    digits = load_digits()
    pixels = digits.data / digits.data.max()
    images = np.hstack([pixels, np.ones((len(pixels), 1))])
    one_hot = np.eye(10)[digits.target]

    order = np.random.default_rng(SEED).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return images[train], one_hot[train], images[test], one_hot[test]


def probabilities(images, weights):
    scores = images @ weights
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def accuracy(images, one_hot, weights):
    return np.mean(probabilities(images, weights).argmax(axis=1) == one_hot.argmax(axis=1))


def train(images, one_hot, n_images, add_over_pes, after_epoch):
    """Gradient descent on `images`, which are this PE's share of `n_images`."""
    weights = np.zeros((images.shape[1], one_hot.shape[1]))
    for epoch in range(1, EPOCHS + 1):
        error = probabilities(images, weights) - one_hot
        gradient = images.T @ error
        total = add_over_pes(gradient.ravel()).reshape(weights.shape)
        weights -= LEARNING_RATE / n_images * total
        after_epoch(epoch, weights)
    return weights


def train_on_all_pes(console, images, one_hot, add_over_pes):
    """Trains on this PE's share. PE 0 shows how it goes."""
    me, n_pes = shmem.shmem_mype(), shmem.shmem_npes()
    with Progress(console=console, disable=me != 0) as progress:
        task = progress.add_task("training", total=EPOCHS)

        def after_epoch(epoch, weights):
            progress.advance(task)
            if me == 0 and epoch % (EPOCHS // 8) == 0:
                correct = accuracy(images[me::n_pes], one_hot[me::n_pes], weights)
                console.print(f"epoch {epoch:3} of {EPOCHS}: {correct:.1%} of PE 0's images right")

        return train(images[me::n_pes], one_hot[me::n_pes], len(images), add_over_pes, after_epoch)


def same_on_all_pes(weights):
    """Whether every PE holds the same weights, to the last bit. Each looks at PE 0's."""
    block = shmem.shmem_malloc(weights.nbytes)
    shmem.shmem_putmem(block, weights, None, shmem.shmem_mype())
    shmem.shmem_barrier_all()
    first = np.empty_like(weights)
    shmem.shmem_getmem(first, block, None, 0)
    shmem.shmem_free(block)  # waits for all PEs, so nobody still reads
    return first.tobytes() == weights.tobytes()


def main():
    console = Console()
    shmem.shmem_init()  # finds the other PEs by what `mori run` put into the environment
    me, n_pes = shmem.shmem_mype(), shmem.shmem_npes()
    images, one_hot, test_images, test_one_hot = load_images()

    gradient_sum = GradientSum(images.shape[1] * one_hot.shape[1])
    shmem.shmem_barrier_all()
    start = time.perf_counter()
    weights = train_on_all_pes(console, images, one_hot, gradient_sum)
    seconds = time.perf_counter() - start

    identical = same_on_all_pes(weights)
    matches = True
    if me == 0:
        # One process, all images, no communication: the same steps but for rounding.
        alone = train(images, one_hot, len(images), lambda gradient: gradient, lambda *_: None)
        difference = np.abs(weights - alone).max()
        matches = difference <= 1e-9 * np.abs(alone).max()

        table = Table(title=f"{EPOCHS} epochs, PEs: {n_pes}", show_header=False)
        table.add_row("held-out accuracy", f"{accuracy(test_images, test_one_hot, weights):.2%}")
        share = gradient_sum.seconds / seconds
        table.add_row("training", f"{seconds:.3f} s")
        table.add_row("of it communicating", f"{gradient_sum.seconds:.3f} s ({share:.0%})")
        table.add_row("weights equal PE 0's", "to the last bit" if identical else "NO")
        table.add_row("largest difference to one process", f"{difference:.1e}")
        console.print(table)

    gradient_sum.free()
    shmem.shmem_finalize()
    if not identical:
        raise SystemExit(f"PE {me} holds other weights than PE 0")
    if not matches:
        raise SystemExit("the PEs' weights differ from those of one process by more than rounding")


if __name__ == "__main__":
    main()
