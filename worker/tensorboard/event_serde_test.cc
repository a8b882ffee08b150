// SPDX-License-Identifier: Apache-2.0
#include "worker/tensorboard/event_serde.h"

#include <isa-l/crc.h>

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace takt::tensorboard {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1500);

// The library's function has neither of the two inversions of CRC-32C (RFC 3720, B.4).
TEST(EventSerde, TheChecksumIsCrc32c) {
  std::string digits = "123456789";
  EXPECT_EQ(~crc32_iscsi(reinterpret_cast<unsigned char*>(digits.data()), 9, ~0U), 0xe3069283U);
}

// Golden bytes: the same events written with the RecordWriter of TensorBoard 2.21.0.
TEST(EventSerde, RecordsAreThoseThatTensorBoardReads) {
  EXPECT_EQ(absl::BytesToHexString(VersionRecord(kTime)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(absl::BytesToHexString(StartRecord(StepId(7), kTime)),
            "0f000000000000006d532b0909000000000000f83f10073a020801774771c7");
  const Scalar scalars[] = {{"train/loss", 2.5}, {"train/grad_norm", 0.125}};
  EXPECT_EQ(absl::BytesToHexString(ScalarsRecord(StepId(300), kTime, scalars)),
            "39000000000000008b0737f109000000000000f83f10ac022a2b0a110a0a747261696e2f6c6f7373150000"
            "20400a160a0f747261696e2f677261645f6e6f726d150000003e11e934d1");
}

}  // namespace
}  // namespace takt::tensorboard
