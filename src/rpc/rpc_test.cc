#include "verbena/rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace verbena {
namespace {

TEST(RpcNamesTest, EveryNameParsesBack) {
  std::set<std::string> names;
  for (Protocol protocol : all_protocols()) {
    const auto parsed = parse_protocol(protocol_name(protocol));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, protocol);
    names.insert(protocol_name(protocol));
  }
  EXPECT_EQ(names, (std::set<std::string>{"send/send", "send/write", "write/send", "write/write",
                                          "read"}));
  for (MarkLayout layout : all_mark_layouts()) {
    const auto parsed = parse_mark_layout(mark_layout_name(layout));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, layout);
  }
  for (Transport transport : all_transports()) {
    const auto parsed = parse_transport(transport_name(transport));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, transport);
  }
  EXPECT_EQ(parse_transport("tcp").status().message(), "no transport 'tcp'; there are rc, uc, ud");
}

TEST(RpcNamesTest, AutomaticIsNoDesign) {
  EXPECT_STREQ(protocol_name(Protocol::kAutomatic), "automatic");
  EXPECT_STREQ(mark_layout_name(MarkLayout::kAutomatic), "automatic");
  EXPECT_FALSE(parse_protocol("automatic").ok());
  EXPECT_FALSE(parse_mark_layout("automatic").ok());
}

TEST(RpcNamesTest, UnknownNamesAreAnsweredWithTheKnownOnes) {
  const auto protocol = parse_protocol("write");
  EXPECT_EQ(protocol.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(protocol.status().message(),
            "no protocol 'write'; there are send/send, send/write, write/send, write/write, read");
  EXPECT_THAT(parse_mark_layout("").status().message(), testing::HasSubstr("last-bit"));
}

}  // namespace
}  // namespace verbena
