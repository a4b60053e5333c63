#include "shmem/pe_info.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/in_process_bootstrap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"

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
  static const CpuMask cpus{0xff, 0x03};
  info.cpus = cpus;
  info.token.fill(9);
  info.settings.fill(7);
  return info;
}

using Settings = std::vector<Setting>;
Settings SampleSettings() {
  return {{"MORI_SHMEM_MODE", "static", ""}, {"MORI_SHMEM_HEAP_SIZE", "4 GiB", "not set"}};
}

TEST(PeInfo, ComesBackAsItWas) {
  TextPool texts;
  const auto decoded = DecodePeInfo(3, EncodePeInfo(Sample(3)), &texts);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->pe, 3);
  EXPECT_THAT(decoded->cpus, ::testing::ElementsAre(0xff, 0x03));
  EXPECT_EQ(decoded->token, Sample(3).token);
  EXPECT_EQ(decoded->settings, Sample(3).settings);
  EXPECT_EQ(EncodePeInfo(*decoded), EncodePeInfo(Sample(3)));
  EXPECT_EQ(NameOf(*decoded), "PE 3 (host node7, process 4711)");
}

TEST(PeInfo, TextsOfManyPesAreKeptOnce) {
  TextPool texts;
  std::vector<PeInfo> pes;
  for (int pe = 0; pe < 100; ++pe) {
    auto decoded = DecodePeInfo(pe, EncodePeInfo(Sample(pe)), &texts);
    ASSERT_TRUE(decoded.ok());
    pes.push_back(*decoded);
  }
  EXPECT_EQ(texts.size(), 5u) << "host, node, machine, device and CPUs";
  for (const PeInfo& info : pes) {
    EXPECT_EQ(info.host.data(), pes[0].host.data());
    EXPECT_EQ(info.host, "node7");
    EXPECT_EQ(info.node_id, "boot");
  }
}

TEST(PeInfo, APartOfItIsRefused) {
  TextPool texts;
  const Bytes whole = EncodePeInfo(Sample(1));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto decoded = DecodePeInfo(1, ByteView(whole).first(bytes), &texts);
    ASSERT_FALSE(decoded.ok()) << bytes;
    EXPECT_EQ(decoded.status().code(), ErrorCode::kMismatch);
  }
  Bytes longer = whole;
  longer.push_back(0);
  EXPECT_FALSE(DecodePeInfo(1, longer, &texts).ok());
}

TEST(PeInfo, AMaskOfNoMachineIsRefused) {
  TextPool texts;
  const CpuMask large(5000, 0xff);
  PeInfo info = Sample(1);
  info.cpus = large;
  EXPECT_FALSE(DecodePeInfo(1, EncodePeInfo(info), &texts).ok());
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

TEST(Nodes, OneBootOfASystemIsOneMachine) {
  PeInfo a = Sample(0), b = Sample(1);
  b.node_id = "other";
  EXPECT_TRUE(ShareAMachine(a, b));
  b.machine = "boot net:[2]";  // a container
  EXPECT_TRUE(ShareAMachine(a, b));
  b.machine = "boot2 net:[1]";
  EXPECT_FALSE(ShareAMachine(a, b));
  a.machine = b.machine = "";  // not known
  EXPECT_FALSE(ShareAMachine(a, b));
}

TEST(Settings, WhatWasChosenCountsNotHowItCameAbout) {
  Config asked, chosen;
  asked.heap_bytes = chosen.heap_bytes = std::uint64_t{1} << 20;
  asked.backend = Backend::kHost;
  chosen.backend = Backend::kAuto;
  const HostRuntime runtime;
  EXPECT_EQ(DigestOf(SettingsOf(asked, runtime)), DigestOf(SettingsOf(chosen, runtime)));
  chosen.heap_bytes = std::uint64_t{2} << 20;
  EXPECT_NE(DigestOf(SettingsOf(asked, runtime)), DigestOf(SettingsOf(chosen, runtime)));
}

TEST(Settings, ASizeThatIsNotSetEqualsTheSameSizeThatIs) {
  Settings other = SampleSettings();
  other[1].note = "";
  EXPECT_EQ(DigestOf(other), DigestOf(SampleSettings()));
  EXPECT_TRUE(CheckSettings({SampleSettings(), other}).ok());
  other[1].value = "5 GiB";
  EXPECT_NE(DigestOf(other), DigestOf(SampleSettings()));
  const Status differ = CheckSettings({SampleSettings(), other});
  EXPECT_EQ(differ.code(), ErrorCode::kMismatch);
  EXPECT_EQ(differ.message(),
            "MORI_SHMEM_HEAP_SIZE must be the same on all PEs: PE 0 has 4 GiB (not set), PE 1 has "
            "5 GiB");
}

TEST(Settings, ASettingThatOneDoesNotHaveIsADifference) {
  Settings fewer = SampleSettings();
  fewer.pop_back();
  EXPECT_NE(DigestOf(fewer), DigestOf(SampleSettings()));
  EXPECT_EQ(CheckSettings({SampleSettings(), fewer}).code(), ErrorCode::kMismatch);
}

/// What each of three PEs, of which the last has `odd`, makes of all settings.
std::vector<Status> AgreeOn(const Settings& odd) {
  constexpr int kPes = 3;
  auto ends = InProcessBootstrap::MakeAll(kPes);
  std::vector<Settings> settings{SampleSettings(), SampleSettings(), odd};
  std::vector<PeInfo> pes;
  for (int pe = 0; pe < kPes; ++pe) {
    pes.push_back(Sample(pe));
    pes.back().settings = DigestOf(settings[static_cast<std::size_t>(pe)]);
  }
  std::vector<Status> outcomes(kPes);
  testing::InThreads(kPes, [&](int pe) {
    const auto index = static_cast<std::size_t>(pe);
    outcomes[index] =
        AgreeOnSettings(pes, settings[index], ends[index].get(), testing::TestLimit());
  });
  // One that only some make would be in the way of this one.
  testing::InThreads(kPes, [&](int pe) {
    EXPECT_TRUE(ends[static_cast<std::size_t>(pe)]->Barrier(testing::TestLimit()).ok());
  });
  for (auto& end : ends) end->Leave();
  return outcomes;
}

TEST(Settings, AreExchangedInFullWhereTheyDiffer) {
  Settings odd = SampleSettings();
  for (const Status& alike : AgreeOn(odd)) EXPECT_TRUE(alike.ok()) << alike.message();
  odd[0].value = "vmm";
  for (const Status& differ : AgreeOn(odd)) {
    EXPECT_EQ(differ.code(), ErrorCode::kMismatch);
    EXPECT_EQ(differ.message(),
              "MORI_SHMEM_MODE must be the same on all PEs: PE 0 has static, PE 2 has vmm");
  }
}

}  // namespace
}  // namespace mori::shmem
