"""Events of well-known contracts, as data: `evm.events("erc20.Transfer")`.

Names of parameters are those of the standards and of the published contracts.
"""

from __future__ import annotations

from collections.abc import Mapping

_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "erc20": (
        "Transfer(address indexed from, address indexed to, uint256 value)",
        "Approval(address indexed owner, address indexed spender, uint256 value)",
    ),
    "erc721": (
        "Transfer(address indexed from, address indexed to, uint256 indexed tokenId)",
        "Approval(address indexed owner, address indexed approved, uint256 indexed tokenId)",
        "ApprovalForAll(address indexed owner, address indexed operator, bool approved)",
    ),
    "erc1155": (
        "TransferSingle(address indexed operator, address indexed from, address indexed to, "
        "uint256 id, uint256 value)",
        "TransferBatch(address indexed operator, address indexed from, address indexed to, "
        "uint256[] ids, uint256[] values)",
        "ApprovalForAll(address indexed account, address indexed operator, bool approved)",
        "URI(string value, uint256 indexed id)",
    ),
    "uniswap_v2": (
        "PairCreated(address indexed token0, address indexed token1, address pair, "
        "uint256 pairCount)",
        "Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, "
        "uint256 amount1Out, address indexed to)",
        "Mint(address indexed sender, uint256 amount0, uint256 amount1)",
        "Burn(address indexed sender, uint256 amount0, uint256 amount1, address indexed to)",
        "Sync(uint112 reserve0, uint112 reserve1)",
    ),
    "uniswap_v3": (
        "PoolCreated(address indexed token0, address indexed token1, uint24 indexed fee, "
        "int24 tickSpacing, address pool)",
        "Initialize(uint160 sqrtPriceX96, int24 tick)",
        "Mint(address sender, address indexed owner, int24 indexed tickLower, "
        "int24 indexed tickUpper, uint128 amount, uint256 amount0, uint256 amount1)",
        "Burn(address indexed owner, int24 indexed tickLower, int24 indexed tickUpper, "
        "uint128 amount, uint256 amount0, uint256 amount1)",
        "Swap(address indexed sender, address indexed recipient, int256 amount0, int256 amount1, "
        "uint160 sqrtPriceX96, uint128 liquidity, int24 tick)",
        "Collect(address indexed owner, address recipient, int24 indexed tickLower, "
        "int24 indexed tickUpper, uint128 amount0, uint128 amount1)",
        "Flash(address indexed sender, address indexed recipient, uint256 amount0, "
        "uint256 amount1, uint256 paid0, uint256 paid1)",
    ),
}

KNOWN_EVENTS: Mapping[str, str] = {
    f"{contract}.{signature.partition('(')[0]}": signature
    for contract, signatures in _SIGNATURES.items()
    for signature in signatures
}
