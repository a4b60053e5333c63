#include "heap/remote_pieces.hpp"

#include <mutex>

namespace mori::shmem {
namespace {

using Registrations = std::vector<std::unique_ptr<Registration>>;

Result<Registrations> RegisterAll(RemoteTransport* network, std::byte* base,
                                  std::span<const Piece> pieces) {
  Registrations made;
  for (const Piece& piece : pieces) {
    MORI_ASSIGN_OR_RETURN(auto one, network->Register(base + piece.offset, piece.bytes));
    made.push_back(std::move(one));
  }
  return made;
}

/// Nothing from a PE that has failed.
Bytes Encode(const Result<Registrations>& made) {
  ByteWriter writer;
  if (!made.ok()) return writer.Take();
  for (const auto& one : *made) writer.Int(one->place().address).Int(one->place().key);
  return writer.Take();
}

}  // namespace

Status RemotePieces::Add(std::byte* base, std::span<const Piece> pieces) {
  auto made = RegisterAll(network_, base, pieces);
  // The others wait for us even if we have nothing for them.
  auto gathered = gather_(Encode(made));
  MORI_RETURN_IF_ERROR(gathered.status());
  MORI_RETURN_IF_ERROR(made.status());
  std::vector<std::vector<RemotePlace>> places(pieces.size());
  for (std::size_t pe = 0; pe < gathered->size(); ++pe) {
    ByteReader reader((*gathered)[pe]);
    for (auto& of_piece : places) {
      const auto address = reader.Int<std::uint64_t>();
      of_piece.push_back({address, reader.Int<std::uint64_t>()});
    }
    if (!reader.AtEnd())
      return Error(ErrorCode::kMismatch, "PE {} has no memory that the network reaches", pe);
  }
  const std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    entries_.insert_or_assign(pieces[i].offset,
                              Entry{pieces[i].bytes, std::move((*made)[i]), std::move(places[i])});
  }
  return Status();
}

void RemotePieces::Remove(std::span<const Piece> pieces) {
  const std::unique_lock lock(mutex_);
  for (const Piece& piece : pieces) entries_.erase(piece.offset);
}

std::optional<RemotePieces::Stretch> RemotePieces::At(int pe, std::uint64_t offset) const {
  const std::shared_lock lock(mutex_);
  auto entry = entries_.upper_bound(offset);
  if (entry == entries_.begin()) return std::nullopt;
  --entry;
  const std::uint64_t inside = offset - entry->first;
  if (inside >= entry->second.bytes) return std::nullopt;
  const RemotePlace& start = entry->second.places[static_cast<std::size_t>(pe)];
  return Stretch{{start.address + inside, start.key}, entry->second.bytes - inside};
}

}  // namespace mori::shmem
