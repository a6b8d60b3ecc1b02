// The provider with FI_VERBENA_LONG_MESSAGES: who moves the bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/ofi/provider_for_test.h"

namespace verbena::ofi_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariable = "FI_VERBENA_LONG_MESSAGES";

struct Way {
  const char* asked;  // empty: nothing
  const char* taken;
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << (*way.asked == '\0' ? "usual" : way.asked);
}

class LongMessagesTest : public ProviderTest, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    setenv("VERBENA_LOG", "info", 1);
    setenv(kVariable, GetParam().asked, 1);
    testing::internal::CaptureStderr();
    set_up();
  }
  void TearDown() override { unsetenv(kVariable); }
};
INSTANTIATE_TEST_SUITE_P(Ways, LongMessagesTest,
                         testing::Values(Way{"", "READ"}, Way{"read", "READ"},
                                         Way{"write", "WRITE"}),
                         testing::PrintToStringParamName());

TEST_P(LongMessagesTest, TravelAsIsAskedFor) {
  constexpr uint64_t kTag = 5;
  std::string into(100'000, '-');
  for (uint64_t i = 0; i < 10 && !HasFatalFailure(); ++i) {
    const std::string text = text_of(into.size(), i);
    receive(b_, into.data(), into.size(), kTag);
    send(a_, text, kTag, FI_COMPLETION);
    EXPECT_EQ(next(b_).error.err, 0);
    EXPECT_EQ(next(a_).error.err, 0);
    EXPECT_TRUE(into == text);
  }
  const std::string goes_as = "a long message goes as rendezvous by ";
  const char* const taken = GetParam().taken;
  const char* const other = std::string(taken) == "READ" ? "WRITE" : "READ";
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr(goes_as + taken), Not(HasSubstr(goes_as + other))));
}

TEST_P(LongMessagesTest, AValueThatIsNoneIsRefused) {
  setenv(kVariable, "sometimes", 1);
  fid_ep* endpoint = nullptr;
  EXPECT_EQ(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), -FI_EINVAL);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr(kVariable), HasSubstr("'sometimes'"),
                             HasSubstr("read, write or automatic")));
}

}  // namespace
}  // namespace verbena::ofi_test
