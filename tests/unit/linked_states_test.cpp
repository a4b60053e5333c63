#include "shmem/linked_states.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_kernels.hpp"

namespace mori::shmem {
namespace {

using testing::FakeKernels;

/// A unit of linked kernels: what was published to it last, and whether it is known yet.
struct Unit : detail::LinkedState {
  Unit() : LinkedState{device::kStateOfNobody.header, &Take} {}
  static int Take(const device::DeviceContext* context, device::u64 bytes, void* stream) {
    EXPECT_NE(stream, nullptr);
    EXPECT_EQ(bytes, context->header.bytes);
    bytes_taken = bytes;
    if (!is_known) return 13;  // cudaErrorInvalidSymbol
    my_pe = static_cast<int>(context->my_pe);
    magic = context->header.magic;
    return 0;
  }
  static inline bool is_known = true;
  static inline int my_pe = -1;
  static inline device::u64 bytes_taken = 0;
  static inline device::u64 magic = 0;
};

class LinkedStatesTest : public ::testing::Test {
 protected:
  LinkedStatesTest() {
    Unit::is_known = true;
    Unit::my_pe = -1;
    Unit::magic = 0;
  }
  static device::DeviceContext ContextOf(unsigned pe) {
    device::DeviceContext context = device::kStateOfNobody;
    context.header.magic = device::kContextMagic;
    context.my_pe = pe;
    return context;
  }

  LinkedStates states;
  FakeKernels device;
  Unit unit;
};

TEST_F(LinkedStatesTest, AUnitOfTheProgramIsToldAtInitAndLosesItAtFinalize) {
  states.Add(&unit);
  EXPECT_EQ(Unit::my_pe, -1);
  states.Publish(&device, 0, ContextOf(3));
  EXPECT_EQ(Unit::my_pe, 3);
  EXPECT_EQ(Unit::magic, device::kContextMagic);
  states.Withdraw(&device);
  EXPECT_EQ(Unit::magic, 0u);
}

TEST_F(LinkedStatesTest, AUnitThatIsOpenedLaterIsToldAtTheNextCall) {
  states.Publish(&device, 0, ContextOf(1));
  states.Add(&unit);
  EXPECT_EQ(Unit::my_pe, -1);  // its kernels may not be registered yet
  states.Retry();
  EXPECT_EQ(Unit::my_pe, 1);
}

TEST_F(LinkedStatesTest, AUnitThatIsNotKnownYetIsAskedAgain) {
  Unit::is_known = false;
  states.Add(&unit);
  states.Publish(&device, 0, ContextOf(2));
  states.Retry();
  EXPECT_EQ(Unit::my_pe, -1);
  Unit::is_known = true;
  states.Retry();
  EXPECT_EQ(Unit::my_pe, 2);
}

TEST_F(LinkedStatesTest, AUnitThatWasClosedIsNotAskedAnyMore) {
  states.Add(&unit);
  states.Remove(&unit);
  states.Publish(&device, 0, ContextOf(2));
  states.Retry();
  EXPECT_EQ(Unit::my_pe, -1);
}

TEST_F(LinkedStatesTest, OfTwoPesOnADeviceTheOneThatStaysInheritsTheKernels) {
  FakeKernels other;
  states.Add(&unit);
  states.Publish(&device, 0, ContextOf(0));
  states.Publish(&other, 0, ContextOf(1));
  EXPECT_EQ(Unit::my_pe, 1);
  states.Withdraw(&other);
  EXPECT_EQ(Unit::my_pe, 0);
  EXPECT_EQ(Unit::magic, device::kContextMagic);
  states.Withdraw(&device);
  EXPECT_EQ(Unit::magic, 0u);
}

TEST_F(LinkedStatesTest, AUnitThatKnowsLessOfTheStateIsGivenThat) {
  unit.compiled_for.bytes = 640;
  states.Add(&unit);
  states.Publish(&device, 0, ContextOf(1));
  EXPECT_EQ(Unit::my_pe, 1);
  EXPECT_EQ(Unit::bytes_taken, 640u);
  unit.compiled_for.bytes = 4096;  // or more
  states.Withdraw(&device);
  EXPECT_EQ(Unit::bytes_taken, sizeof(device::DeviceContext));
}

TEST_F(LinkedStatesTest, AUnitOfAnotherAbiIsNamedAtInitAndGivenNothing) {
  for (const unsigned abi : {1U, device::kContextAbi + 1}) {
    SCOPED_TRACE(abi);
    LinkedStates mine;
    unit.compiled_for.abi = abi;
    mine.Add(&unit);
    ::testing::internal::CaptureStderr();
    mine.Publish(&device, 0, ContextOf(1));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr(fmt::format("compiled for version {}", abi)));
    EXPECT_EQ(Unit::my_pe, -1);
    mine.Remove(&unit);
  }
}

TEST_F(LinkedStatesTest, AUnitOfVersion1IsNamedEvenWhereItComesLate) {
  states.Publish(&device, 0, ContextOf(1));
  ::testing::internal::CaptureStderr();
  states.AddOfVersion1();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("compile them again with this library's headers"));
}

TEST_F(LinkedStatesTest, APeOnAnotherDeviceInheritsNothing) {
  FakeKernels other;
  states.Add(&unit);
  states.Publish(&device, 0, ContextOf(0));
  states.Publish(&other, 1, ContextOf(1));
  states.Withdraw(&other);
  EXPECT_EQ(Unit::magic, 0u);  // of device 1; this unit does not tell devices apart
}

}  // namespace
}  // namespace mori::shmem
