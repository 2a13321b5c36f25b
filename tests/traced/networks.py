"""Networks in PyTorch for tests of tracing: (module, inputs) by name. PyTorch is imported by these functions alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


def resnet50() -> tuple[Any, list[Any]]:
    """Return ResNet-50, version 1.5, with a loss."""
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self, entered: int, middle: int, stride: int) -> None:
            super().__init__()
            self.main = nn.Sequential(
                nn.Conv2d(entered, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                nn.Conv2d(middle, 4 * middle, 1, bias=False), nn.BatchNorm2d(4 * middle),
            )  # fmt: skip
            same = stride == 1 and entered == 4 * middle
            self.shortcut = nn.Identity() if same else nn.Sequential(
                nn.Conv2d(entered, 4 * middle, 1, stride, bias=False), nn.BatchNorm2d(4 * middle)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return torch.relu_(self.main(x) + self.shortcut(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.norm, self.pool = nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)
            blocks, entered = [], 64
            for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
                for number in range(count):
                    blocks.append(Bottleneck(entered, middle, stride if number == 0 else 1))
                    entered = 4 * middle
            self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(2048, 1000)

        def forward(self, x: Any, labels: Any) -> Any:
            x = self.pool(torch.relu_(self.norm(self.stem(x))))
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x.mean((2, 3))).float(), labels)

    with torch.device("meta"):
        return Net(), [torch.empty(1, 3, 224, 224), torch.empty(1, dtype=torch.long)]


def vit_b() -> tuple[Any, list[Any]]:
    """Return ViT-B/16."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)
            self.qkv, self.out = nn.Linear(768, 2304), nn.Linear(768, 768)
            self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

        def forward(self, x: Any) -> Any:
            samples, tokens, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(samples, tokens, 3, 12, 64).permute(2, 0, 3, 1, 4)
            scored = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(scored.transpose(1, 2).reshape(samples, tokens, 768))
            return x + self.mlp(self.norm2(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 768, 16, 16)
            self.token, self.positions = nn.Parameter(torch.empty(1, 1, 768)), nn.Parameter(torch.empty(1, 197, 768))
            self.blocks = nn.ModuleList(Block() for _ in range(12))
            self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 1000)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    with torch.device("meta"):
        return Net(), [torch.empty(1, 3, 224, 224)]


def unet() -> tuple[Any, list[Any]]:
    """Return a small UNet: two levels, a shortcut across, group norms, a time step, and a mean squared error."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, entered: int, left: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, entered), nn.GroupNorm(8, left)
            self.conv1, self.conv2 = nn.Conv2d(entered, left, 3, 1, 1), nn.Conv2d(left, left, 3, 1, 1)
            self.time = nn.Linear(256, left)
            self.shortcut = nn.Conv2d(entered, left, 1) if entered != left else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
            return self.conv2(nn.functional.silu(self.norm2(h))) + self.shortcut(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.down = nn.Conv2d(4, 64, 3, 1, 1), nn.Conv2d(64, 64, 3, 2, 1)
            self.up, self.leave = nn.ConvTranspose2d(128, 64, 2, 2), nn.Conv2d(64, 4, 3, 1, 1)
            self.blocks = nn.ModuleList([Block(64, 64), Block(64, 128), Block(128, 64)])

        def forward(self, x: Any, time: Any, noise: Any) -> Any:
            high = self.blocks[0](self.enter(x), time)
            low = self.blocks[1](self.down(high), time)
            x = self.blocks[2](torch.cat([self.up(low), high], 1), time)
            return nn.functional.mse_loss(self.leave(x), noise)

    with torch.device("meta"):
        return Net(), [torch.empty(1, 4, 64, 64), torch.empty(1, 256), torch.empty(1, 4, 64, 64)]


def dlrm() -> tuple[Any, list[Any]]:
    """Return a recommender like DLRM: tables for categories, an MLP for numbers, products of all pairs, an MLP."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, 64) for rows in (1000, 20_000, 500))
            self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(64 + 6, 256), nn.ReLU(), nn.Linear(256, 1))

        def forward(self, numbers: Any, categories: Any, clicked: Any) -> Any:
            vectors = [table(categories[:, place]) for place, table in enumerate(self.tables)]
            dense = self.bottom(numbers)
            every = torch.stack([dense, *vectors], 1)
            pairs = torch.bmm(every, every.transpose(1, 2))
            rows, columns = zip(*[(i, j) for i in range(4) for j in range(i)], strict=True)
            crossed = torch.stack([pairs[:, i, j] for i, j in zip(rows, columns, strict=True)], 1)
            return nn.functional.binary_cross_entropy_with_logits(self.top(torch.cat([dense, crossed], 1)), clicked)

    with torch.device("meta"):
        return Net(), [torch.empty(1, 13), torch.empty(1, 3, dtype=torch.long), torch.empty(1, 1)]


def llama() -> tuple[Any, list[Any]]:
    """Return a small Llama: RMSNorm, rotary positions, grouped keys, SwiGLU, each a fused kernel."""
    import torch
    from torch import nn

    width, heads, kv_heads, hidden, tokens, words = 1024, 16, 4, 2816, 1024, 8192

    class Rotation(torch.autograd.Function):
        """Rotary positions as a fused kernel, which saves nothing but its table."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 1

    class Swiglu(torch.autograd.Function):
        """The activation as a fused kernel, which saves its input alone."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            gate, up = x.chunk(2, -1)
            return nn.functional.silu(gate) * up

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return torch.cat([gradient, gradient], -1) * x

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            own = width // heads * kv_heads
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, width + 2 * own, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any) -> Any:
            samples = x.shape[0]
            parts = self.qkv(self.norm1(x)).split([width, width // 4, width // 4], -1)
            q, k, v = (part.view(samples, tokens, -1, width // heads).transpose(1, 2) for part in parts)
            q, k = Rotation.apply(q), Rotation.apply(k)
            scored = nn.functional.scaled_dot_product_attention(q, k, v.clone(), is_causal=True, enable_gqa=True)
            x = x + self.out(scored.transpose(1, 2).reshape(samples, tokens, width))
            return x + self.down(Swiglu.apply(self.up(self.norm2(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.layers = nn.ModuleList(Block() for _ in range(4))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, numbers: Any, labels: Any) -> Any:
            x = self.embedding(numbers)
            for layer in self.layers:
                x = layer(x)
            logits = self.head(self.norm(x)).float()
            return nn.functional.cross_entropy(logits.view(-1, words), labels.view(-1))

    with torch.device("meta"):
        return Net(), [torch.empty(1, tokens, dtype=torch.long), torch.empty(1, tokens, dtype=torch.long)]


NETWORKS: Final[dict[str, Callable[[], tuple[Any, list[Any]]]]] = {
    "resnet50": resnet50, "vit_b": vit_b, "unet": unet, "dlrm": dlrm, "llama": llama,
}  # fmt: skip
