#include "heap/backing.hpp"

#include <algorithm>
#include <map>
#include <optional>

namespace mori::shmem {
namespace {

class WholeBacking final : public Backing {
 public:
  explicit WholeBacking(std::uint64_t bytes) : bytes_(bytes) {}
  std::vector<Piece> AtInit() override { return {{0, bytes_}}; }
  std::vector<Piece> Take(const Piece&) override { return {}; }
  void Undo(const Piece&, const std::vector<Piece>&) override {}
  std::vector<Piece> Drop(const Piece&) override { return {}; }
  std::uint64_t End() const override { return bytes_; }
  bool Covers(const Piece& range) const override {
    return range.bytes <= bytes_ && range.offset <= bytes_ - range.bytes;
  }

 private:
  std::uint64_t bytes_;
};

class ChunkBacking final : public Backing {
 public:
  ChunkBacking(std::uint64_t bytes, std::uint64_t chunk_bytes)
      : bytes_(bytes), chunk_bytes_(chunk_bytes) {}

  std::vector<Piece> AtInit() override { return {}; }

  std::vector<Piece> Take(const Piece& block) override {
    std::vector<Piece> wanted;
    for (std::uint64_t chunk = First(block); chunk <= Last(block); ++chunk) {
      if (++blocks_[chunk] > 1) continue;
      if (spare_ == chunk) {
        spare_.reset();
      } else {
        wanted.push_back(PieceOf(chunk));
      }
    }
    return wanted;
  }

  void Undo(const Piece& block, const std::vector<Piece>& wanted) override {
    for (std::uint64_t chunk = First(block); chunk <= Last(block); ++chunk) {
      const auto found = blocks_.find(chunk);
      if (--found->second > 0) continue;
      blocks_.erase(found);
      const bool was_new =
          std::ranges::binary_search(wanted, PieceOf(chunk).offset, {}, &Piece::offset);
      if (!was_new) spare_ = chunk;
    }
  }

  std::vector<Piece> Drop(const Piece& block) override {
    std::vector<Piece> unused;
    for (std::uint64_t chunk = First(block); chunk <= Last(block); ++chunk) {
      const auto found = blocks_.find(chunk);
      if (--found->second > 0) continue;
      blocks_.erase(found);
      // The lowest stays: that is where the next block is placed.
      if (spare_) unused.push_back(PieceOf(std::max(*spare_, chunk)));
      spare_ = std::min(spare_.value_or(chunk), chunk);
    }
    return unused;
  }

  std::uint64_t End() const override {
    std::uint64_t end = spare_ ? PieceOf(*spare_).end() : 0;
    if (!blocks_.empty()) end = std::max(end, PieceOf(blocks_.rbegin()->first).end());
    return end;
  }

  bool Covers(const Piece& range) const override {
    if (range.bytes > bytes_ || range.offset > bytes_ - range.bytes) return false;
    for (std::uint64_t chunk = First(range); chunk <= Last(range); ++chunk) {
      if (!blocks_.contains(chunk) && spare_ != chunk) return false;
    }
    return true;
  }

 private:
  std::uint64_t First(const Piece& block) const { return block.offset / chunk_bytes_; }
  std::uint64_t Last(const Piece& block) const {
    return (block.offset + std::max<std::uint64_t>(block.bytes, 1) - 1) / chunk_bytes_;
  }
  Piece PieceOf(std::uint64_t chunk) const {
    const std::uint64_t offset = chunk * chunk_bytes_;
    return {offset, std::min(chunk_bytes_, bytes_ - offset)};
  }

  std::uint64_t bytes_;
  std::uint64_t chunk_bytes_;
  std::map<std::uint64_t, std::uint64_t> blocks_;  ///< how many lie in a chunk, at least in part
  std::optional<std::uint64_t> spare_;             ///< a chunk with memory and no block
};

class BlockBacking final : public Backing {
 public:
  std::vector<Piece> AtInit() override { return {}; }
  std::vector<Piece> Take(const Piece& block) override {
    blocks_.emplace(block.offset, block.bytes);
    return {block};
  }
  void Undo(const Piece& block, const std::vector<Piece>&) override { blocks_.erase(block.offset); }
  std::vector<Piece> Drop(const Piece& block) override {
    blocks_.erase(block.offset);
    return {block};
  }
  std::uint64_t End() const override {
    return blocks_.empty() ? 0 : blocks_.rbegin()->first + blocks_.rbegin()->second;
  }
  bool Covers(const Piece& range) const override {
    const auto after = blocks_.upper_bound(range.offset);
    if (after == blocks_.begin()) return false;
    const auto [offset, bytes] = *std::prev(after);
    return range.bytes <= bytes && range.offset - offset <= bytes - range.bytes;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> blocks_;  ///< offset and length
};

}  // namespace

std::unique_ptr<Backing> MakeWholeBacking(std::uint64_t bytes) {
  return std::make_unique<WholeBacking>(bytes);
}

std::unique_ptr<Backing> MakeChunkBacking(std::uint64_t bytes, std::uint64_t chunk_bytes) {
  return std::make_unique<ChunkBacking>(bytes, chunk_bytes);
}

std::unique_ptr<Backing> MakeBlockBacking() { return std::make_unique<BlockBacking>(); }

}  // namespace mori::shmem
