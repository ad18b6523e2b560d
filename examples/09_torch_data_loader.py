"""Train a small network on the digits of scikit-learn; DataLoader workers collate the batches in shared memory."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import mp_all


class Digits(Dataset):
    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).div_(16)
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        down, right = torch.randint(-1, 2, (2,)).tolist()  # another step in each pass over the data
        return self.images[k].roll((down, right), (0, 1))[None], self.labels[k]


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10)),
    )


if __name__ == "__main__":
    mp_all.torch_install()  # the one line that is new
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    loader = DataLoader(Digits(), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    for _pass in range(4):
        right = 0
        for images, labels in loader:
            assert images.is_shared() and labels.is_shared()
            scores = model(images)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
            right += int((scores.argmax(1) == labels).sum())
    accuracy = right / len(loader.dataset)
    assert accuracy > 0.7, accuracy
    stats = mp_all.memory_stats()
    print(f"{accuracy:.0%} of the digits in the last pass; {stats['descriptors']} descriptors for shared memory")
