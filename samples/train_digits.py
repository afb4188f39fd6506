"""Train the sample `digits.onnx` and write its data, `digits.npz`: `python samples/train_digits.py`.

A small HRNet: a stem, a residual block at full resolution, a second branch at half of it, and a fuse sum over both,
with HRNet-W18's widths, 18 and 36. It learns 200 of scikit-learn's 1,797 handwritten digits (Alpaydin and Kaynak, 1998,
UCI Machine Learning Repository, CC BY 4.0); the others, which it never saw, are the data. It takes half a minute on two
cores and needs the extra `test`. On one machine the same files come out every time.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fusescope.quant.export import export

HERE = Path(__file__).parent
SIDE = 32
WIDE, DEEP = 18, 36
TRAINED_ON = 200
EPOCHS = 30
BATCH = 50


class Block(nn.Module):
    """Two convolutions with a skip around them: the residual block of ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, width, H, W), before and after."""
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + x)


def _norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class DigitsNet(nn.Module):
    """Ten classes from one channel of 32 by 32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _norm_conv(1, WIDE, 3, stride=2)
        self.wide = nn.Sequential(Block(WIDE), Block(WIDE))
        self.down = _norm_conv(WIDE, DEEP, 3, stride=2)
        self.deep = Block(DEEP)
        self.up = _norm_conv(DEEP, WIDE, 1)
        self.fused = Block(WIDE)
        self.last = _norm_conv(WIDE, DEEP, 3, stride=2)
        self.head = nn.Linear(DEEP, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, 1, 32, 32) to (N, 10)."""
        wide = self.wide(torch.relu(self.stem(x)))
        deep = self.deep(torch.relu(self.down(wide)))
        raised = nn.functional.interpolate(self.up(deep), scale_factor=2.0, mode="nearest")
        fused = self.fused(torch.relu(wide + raised))
        last = torch.relu(self.last(fused) + deep)
        return self.head(last.mean((2, 3)))  # type: ignore[no-any-return]


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images of shape (1797, 1, 32, 32), 0 to 1, each pixel of the original four by four times; and their digits."""
    images, labels = load_digits(return_X_y=True)
    small = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    return small.repeat(SIDE // 8, axis=2).repeat(SIDE // 8, axis=3), labels.astype(np.int64)


def train(images: Tensor, labels: Tensor) -> DigitsNet:
    """Fit a network, from a fixed seed."""
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def main() -> None:
    """Train, export, and write the images that were not trained on."""
    torch.manual_seed(0)
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(images))
    seen, unseen = np.split(order, [TRAINED_ON])
    net = train(torch.from_numpy(images[seen]), torch.from_numpy(labels[seen]))
    with torch.no_grad():
        right = net(torch.from_numpy(images[unseen])).argmax(1).numpy() == labels[unseen]
    print(f"{right.sum()} of {len(unseen)} unseen digits right")  # noqa: T201 - a script says what it did
    np.savez_compressed(HERE / "digits.npz", input=images[unseen], labels=labels[unseen])
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "digits.pth"
        torch.save(net.state_dict(), checkpoint)
        model = export("train_digits:DigitsNet", weights=checkpoint, shape=(1, SIDE, SIDE))
    (HERE / "digits.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
