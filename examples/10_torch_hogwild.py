"""Train one torch model in two processes without a lock (Hogwild): its parameters are in shared memory."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import mp_all as mp


def learn(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, seed: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(400):
        rows = torch.randint(len(labels), (64,))
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # the gradients are this process's own
        optimizer.step()  # the parameters are everybody's: a step may be lost, and the next one compensates


if __name__ == "__main__":
    mp.torch_install()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # before the children are forked
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).div_(16).share_memory_()
    labels = torch.tensor(digits.target).share_memory_()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).share_memory()
    workers = [mp.Process(target=learn, args=(model, images, labels, seed)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0
    with torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    assert accuracy > 0.9, accuracy
    print(f"{accuracy:.0%} of the digits, learned by {len(workers)} processes into one model")
