// Bootstrap for ranks that are threads of one process, or objects of one test.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tree.hpp"

namespace mori::shmem {

/// One rank of a world that lives in one process. Destruction without `Leave()` counts as a loss.
class InProcessBootstrap final : public Bootstrap {
 public:
  /// The ends of all `size` ranks, by rank; `size` is at least 1.
  static std::vector<std::unique_ptr<Bootstrap>> MakeAll(int size);

  ~InProcessBootstrap() override;

  void Abort(const Status& why) override;
  void Accuse(int rank, const std::string& reason) override;
  void Observe(Observer observer) override;
  void Leave() override;

 private:
  class Hub;

  InProcessBootstrap(std::shared_ptr<Hub> hub, int rank, int size);

  const Place& place() const override { return place_; }
  std::optional<int> ChildTowards(int rank) const override {
    return Tree(size()).ChildTowards(this->rank(), rank);
  }
  void Post(int to, const Channel& channel, Bytes message) override;
  std::optional<std::vector<int>> FindMissing(const Round& round) override;

  std::shared_ptr<Hub> hub_;
  Place place_;
};

}  // namespace mori::shmem
