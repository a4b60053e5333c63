#include "shmem/pe_info.hpp"

#include <gtest/gtest.h>

#include "runtime/host/host_runtime.hpp"

namespace mori::shmem {
namespace {

PeInfo Sample(int pe) {
  PeInfo info;
  info.pe = pe;
  info.host = "node7";
  info.process_id = 4711;
  info.node_id = "boot";
  info.machine = "boot net:[1]";
  info.device = "0000:01:00.0";
  info.multiprocessors = 132;
  info.cpus = {0xff, 0x03};
  info.token.fill(9);
  info.settings = {{"MORI_SHMEM_MODE", "static", ""}, {"MORI_SHMEM_HEAP_SIZE", "4 GiB", "not set"}};
  return info;
}

TEST(PeInfo, ComesBackAsItWas) {
  const auto decoded = DecodePeInfo(3, EncodePeInfo(Sample(3)));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->pe, 3);
  EXPECT_EQ(decoded->cpus, Sample(3).cpus);
  EXPECT_EQ(decoded->token, Sample(3).token);
  EXPECT_EQ(EncodePeInfo(*decoded), EncodePeInfo(Sample(3)));
  EXPECT_EQ(NameOf(*decoded), "PE 3 (host node7, process 4711)");
}

TEST(PeInfo, APartOfItIsRefused) {
  const Bytes whole = EncodePeInfo(Sample(1));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto decoded = DecodePeInfo(1, ByteView(whole).first(bytes));
    ASSERT_FALSE(decoded.ok()) << bytes;
    EXPECT_EQ(decoded.status().code(), ErrorCode::kMismatch);
  }
  Bytes longer = whole;
  longer.push_back(0);
  EXPECT_FALSE(DecodePeInfo(1, longer).ok());
}

TEST(PeInfo, AMaskOfNoMachineIsRefused) {
  PeInfo info = Sample(1);
  info.cpus.assign(5000, 0xff);
  EXPECT_FALSE(DecodePeInfo(1, EncodePeInfo(info)).ok());
}

TEST(Nodes, PesOfOneNodeAreOnOneMachine) {
  std::vector<PeInfo> pes{Sample(0), Sample(1), Sample(2), Sample(3)};
  EXPECT_TRUE(CheckNodes(pes).ok());
  pes[1].node_id = "other";
  pes[1].machine = "boot net:[2]";
  pes[2].machine = "";  // not known
  EXPECT_TRUE(CheckNodes(pes).ok());
  pes[3].machine = "boot net:[2]";
  const Status status = CheckNodes(pes);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.message(),
            "PE 0 (host node7, process 4711) and PE 3 (host node7, process 4711) have one name of "
            "their node, \"boot\", but they are on different machines, or in different network "
            "namespaces, as separate containers are: give them different values of MORI_NODE_ID");
}

TEST(Settings, WhatWasChosenCountsNotHowItCameAbout) {
  Config asked, chosen;
  asked.heap_bytes = chosen.heap_bytes = std::uint64_t{1} << 20;
  asked.backend = Backend::kHost;
  chosen.backend = Backend::kAuto;
  const HostRuntime runtime;
  std::vector<PeInfo> pes{Sample(0), Sample(1)};
  pes[0].settings = SettingsOf(asked, runtime);
  pes[1].settings = SettingsOf(chosen, runtime);
  const Status alike = CheckSettings(pes);
  EXPECT_TRUE(alike.ok()) << alike.message();
}

TEST(Settings, ASizeThatIsNotSetEqualsTheSameSizeThatIs) {
  std::vector<PeInfo> pes{Sample(0), Sample(1)};
  pes[1].settings[1].note = "";
  EXPECT_TRUE(CheckSettings(pes).ok());
  pes[1].settings[1].value = "5 GiB";
  const Status differ = CheckSettings(pes);
  EXPECT_EQ(differ.code(), ErrorCode::kMismatch);
  EXPECT_EQ(differ.message(),
            "MORI_SHMEM_HEAP_SIZE must be the same on all PEs: PE 0 has 4 GiB (not set), PE 1 has "
            "5 GiB");
}

TEST(Settings, ASettingThatOneDoesNotHaveIsADifference) {
  std::vector<PeInfo> pes{Sample(0), Sample(1)};
  pes[1].settings.pop_back();
  EXPECT_EQ(CheckSettings(pes).code(), ErrorCode::kMismatch);
}

}  // namespace
}  // namespace mori::shmem
