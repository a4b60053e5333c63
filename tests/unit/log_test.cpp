#include "base/log.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace mori::shmem {
namespace {

/// What `body` writes to standard error.
template <typename Body>
std::string Written(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override {
    SetLogLevel(LogLevel::kInfo);
    SetLogPe(0, 0);
  }
};

TEST_F(LogTest, ALineSaysItsLevelUnlessItIsInfo) {
  SetLogLevel(LogLevel::kTrace);
  EXPECT_EQ(Written([] { LogLine(LogLevel::kTrace, "one"); }), "[mori] trace: one\n");
  EXPECT_EQ(Written([] { LogDebug("qp {:#x}", 26); }), "[mori] debug: qp 0x1a\n");
  EXPECT_EQ(Written([] { LogInfo("heap {} bytes", 4096); }), "[mori] heap 4096 bytes\n");
  EXPECT_EQ(Written([] { LogWarn("odd"); }), "[mori] warning: odd\n");
  EXPECT_EQ(Written([] { LogError("over"); }), "[mori] error: over\n");
}

TEST_F(LogTest, InfoIsTheLevelAtFirst) {
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  constexpr LogLevel kAll[] = {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn,
                               LogLevel::kError};
  for (const LogLevel level : kAll) {
    SetLogLevel(level);
    for (const LogLevel line : kAll) {
      EXPECT_EQ(LogEnabled(line), line >= level);
      EXPECT_EQ(Written([&] { Log(line, "text"); }).empty(), line < level);
    }
  }
}

TEST_F(LogTest, AMessageCannotBeginALineOfItsOwn) {
  EXPECT_EQ(Written([] { LogWarn("it said {}", "a\n[mori] PE 0/2 ready\xff"); }),
            "[mori] warning: it said a\\x0a[mori] PE 0/2 ready\\xff\n");
  SetLogPe(1, 2);
  EXPECT_EQ(Written([] { LogWarn("it said {}", "a\nb"); }),
            "[mori] PE 1/2 warning: it said a\\x0ab\n");
}

TEST_F(LogTest, TheThreadsPeIsInTheLine) {
  SetLogPe(3, 8);
  EXPECT_EQ(Written([] { LogWarn("odd"); }), "[mori] PE 3/8 warning: odd\n");
  EXPECT_EQ(Written([] { LogInfo("ready"); }), "[mori] PE 3/8 ready\n");
  EXPECT_EQ(Written([] { std::thread([] { LogInfo("another"); }).join(); }), "[mori] another\n");
  SetLogPe(0, 0);
  EXPECT_EQ(Written([] { LogInfo("nobody"); }), "[mori] nobody\n");
}

TEST_F(LogTest, BracesInATextAreText) {
  EXPECT_EQ(Written([] { LogLine(LogLevel::kInfo, "{} {0} %v %d"); }), "[mori] {} {0} %v %d\n");
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  constexpr int kThreads = 8, kLines = 50;
  const std::string text = Written([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        SetLogPe(i, kThreads);
        for (int line = 0; line < kLines; ++line) LogInfo("line {:04}", line);
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::size_t lines = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line); ++lines) {
    EXPECT_EQ(line.size(), std::string("[mori] PE 0/8 line 0000").size()) << line;
    EXPECT_TRUE(line.starts_with("[mori] PE ")) << line;
  }
  EXPECT_EQ(lines, std::size_t{kThreads * kLines});
}

}  // namespace
}  // namespace mori::shmem
