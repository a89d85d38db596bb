CREATE TABLE meta (
    name VARCHAR(40) NOT NULL,
    value VARCHAR(200) NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO meta VALUES('schema','2');
INSERT INTO meta VALUES('key_check','5b583ae806edcc46d07e1265841e631b');
INSERT INTO meta VALUES('epoch','4');
CREATE TABLE policies (
    id INTEGER NOT NULL,
    created_at VARCHAR(20) NOT NULL,
    settings TEXT NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO policies VALUES(1,'2026-01-01T00:00:00Z','{"composition": "exact", "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": 1, "tie_status_public": false, "ties": "coin", "unit": "labeler"}');
CREATE TABLE prices (
    policy_id INTEGER NOT NULL,
    k BIGINT NOT NULL,
    price VARCHAR(20) NOT NULL,
    PRIMARY KEY (policy_id, k),
    FOREIGN KEY(policy_id) REFERENCES policies (id)
);
INSERT INTO prices VALUES(1,8,'7513609279317036174');
CREATE TABLE labelers (
    labeler BLOB NOT NULL,
    capacity BIGINT NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (labeler),
    CONSTRAINT allowance CHECK (used >= 0 AND used <= capacity)
);
INSERT INTO labelers VALUES(X'0D8E2AFFC997AEEC54CD9D08CC40C721',8,6);
INSERT INTO labelers VALUES(X'9CEA67AE47F923C09B0FC413DE298CB5',8,4);
INSERT INTO labelers VALUES(X'EB28B71529A30B566C8A08E404A56952',8,6);
INSERT INTO labelers VALUES(X'33773B5B6F7DE6B2AB2EA2C990DE12FA',8,4);
CREATE TABLE releases (
    id VARCHAR(40) NOT NULL,
    number INTEGER NOT NULL,
    idempotency_key VARCHAR(64) NOT NULL,
    policy_id INTEGER NOT NULL,
    state VARCHAR(12) NOT NULL,
    created_at VARCHAR(20) NOT NULL,
    settings TEXT NOT NULL,
    charged BIGINT NOT NULL,
    rows BIGINT,
    files TEXT,
    seal VARCHAR(64),
    PRIMARY KEY (id),
    UNIQUE (number),
    FOREIGN KEY(policy_id) REFERENCES policies (id)
);
INSERT INTO releases VALUES('r0001-b3ecb16d',1,'b3ecb16d2691ec3fc6e1443913fd982c98e76e622ee0c6c82f29e017e224cb91',1,'committed','2026-01-01T00:00:00Z','{"again": 0, "drawn": 8, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 3, "mechanism": "rr", "mechanism_version": 1, "parameters": {}, "request": {"composition": null, "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": null, "tie_status_public": null, "ties": null, "unit": null}, "rows_planned": 8}',8,8,'{"CARD.md": "d140e27b5cc2694eb2a78a290468c66ef234cdb658c177b6e8f14087882a5bf2", "card.json": "f22f39bcecde57b430530c731f5374271055ec143e0d7aac33c64c0fc87b7a0b", "data.parquet": "587fcb502b0893a99ce83111eef80c5d161311736caae2ada385131e9de6bf08"}',NULL);
INSERT INTO releases VALUES('r0002-b4b3e693',2,'b4b3e6934e4b0a1ebdbe7cd725179aa427adfc23a85d44d3b925142f8cbfe120',1,'refunded','2026-01-01T00:00:00Z','{"again": 0, "drawn": 4, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 4, "mechanism": "rr", "mechanism_version": 1, "parameters": {}, "request": {"composition": null, "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": null, "tie_status_public": null, "ties": null, "unit": null}, "rows_planned": 12}',0,NULL,NULL,NULL);
INSERT INTO releases VALUES('r0003-d53a7c61',3,'d53a7c6159ccbd8644c0dacc654ee859a9adb5ab641abe4fc95cd9b1c9335dca',1,'computing','2026-01-01T00:00:00Z','{"again": 0, "drawn": 8, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 4, "mechanism": "rr", "mechanism_version": 1, "parameters": {}, "request": {"composition": null, "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": null, "tie_status_public": null, "ties": null, "unit": null}, "rows_planned": 16}',8,NULL,NULL,NULL);
INSERT INTO releases VALUES('r0004-f9f9d585',4,'f9f9d585383a5b78d73c734212ab53f00a6a6239885e34784a61081c4bcb2d11',1,'reserved','2026-01-01T00:00:00Z','{"again": 0, "drawn": 4, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 4, "mechanism": "rr", "mechanism_version": 1, "parameters": {}, "request": {"composition": null, "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": null, "tie_status_public": null, "ties": null, "unit": null}, "rows_planned": 20}',4,NULL,NULL,NULL);
CREATE TABLE charges (
    release_id VARCHAR(40) NOT NULL,
    labeler BLOB NOT NULL,
    labels BIGINT NOT NULL,
    PRIMARY KEY (release_id, labeler),
    FOREIGN KEY(release_id) REFERENCES releases (id)
);
INSERT INTO charges VALUES('r0001-b3ecb16d',X'0D8E2AFFC997AEEC54CD9D08CC40C721',3);
INSERT INTO charges VALUES('r0001-b3ecb16d',X'9CEA67AE47F923C09B0FC413DE298CB5',2);
INSERT INTO charges VALUES('r0001-b3ecb16d',X'EB28B71529A30B566C8A08E404A56952',3);
INSERT INTO charges VALUES('r0003-d53a7c61',X'0D8E2AFFC997AEEC54CD9D08CC40C721',3);
INSERT INTO charges VALUES('r0003-d53a7c61',X'33773B5B6F7DE6B2AB2EA2C990DE12FA',3);
INSERT INTO charges VALUES('r0003-d53a7c61',X'9CEA67AE47F923C09B0FC413DE298CB5',1);
INSERT INTO charges VALUES('r0003-d53a7c61',X'EB28B71529A30B566C8A08E404A56952',1);
INSERT INTO charges VALUES('r0004-f9f9d585',X'33773B5B6F7DE6B2AB2EA2C990DE12FA',1);
INSERT INTO charges VALUES('r0004-f9f9d585',X'9CEA67AE47F923C09B0FC413DE298CB5',1);
INSERT INTO charges VALUES('r0004-f9f9d585',X'EB28B71529A30B566C8A08E404A56952',2);
CREATE TABLE journal (
    number INTEGER NOT NULL,
    at VARCHAR(20) NOT NULL,
    kind VARCHAR(20) NOT NULL,
    body TEXT NOT NULL,
    previous VARCHAR(64) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    PRIMARY KEY (number)
);
INSERT INTO journal VALUES(1,'2026-01-01T00:00:00Z','created','{"schema": 2}','0000000000000000000000000000000000000000000000000000000000000000','af3e8ab502ca272de6e16e9acc4faf32fe4685623b7e454514ea579f5061ddc0');
INSERT INTO journal VALUES(2,'2026-01-01T00:00:00Z','policy','{"policy": 1, "settings": {"composition": "exact", "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": 8, "mechanism": "rr", "releases": 1, "tie_status_public": false, "ties": "coin", "unit": "labeler"}}','af3e8ab502ca272de6e16e9acc4faf32fe4685623b7e454514ea579f5061ddc0','0e43cc8c1ebe89be82a1b9438bad573cf8066145c81fe863ed0d352b3ba435a4');
INSERT INTO journal VALUES(3,'2026-01-01T00:00:00Z','charged','{"charges": "e91cd51dab96f15d82075201f45e8b066da0c02ffb5a3644695335988eccf9e0", "labelers": 3, "labels": 8, "mechanism": "rr", "prices": {"8": "7513609279317036174"}, "release": "r0001-b3ecb16d"}','0e43cc8c1ebe89be82a1b9438bad573cf8066145c81fe863ed0d352b3ba435a4','5f8d922aefd64b98a3d1f7a63f107b6b9bb0430801782b7ee70e05807653f32f');
INSERT INTO journal VALUES(4,'2026-01-01T00:00:00Z','computing','{"release": "r0001-b3ecb16d"}','5f8d922aefd64b98a3d1f7a63f107b6b9bb0430801782b7ee70e05807653f32f','af0043d31d7f838d01d0b44fecbf71f393a02580c39fc8077fafe8abb9fcd978');
INSERT INTO journal VALUES(5,'2026-01-01T00:00:00Z','committed','{"files": {"CARD.md": "d140e27b5cc2694eb2a78a290468c66ef234cdb658c177b6e8f14087882a5bf2", "card.json": "f22f39bcecde57b430530c731f5374271055ec143e0d7aac33c64c0fc87b7a0b", "data.parquet": "587fcb502b0893a99ce83111eef80c5d161311736caae2ada385131e9de6bf08"}, "release": "r0001-b3ecb16d", "rows": 8}','af0043d31d7f838d01d0b44fecbf71f393a02580c39fc8077fafe8abb9fcd978','81822388df6e1a8222547fdd072c294c06deb39281f8cb6ef6213ca42f0522f8');
INSERT INTO journal VALUES(6,'2026-01-01T00:00:00Z','charged','{"charges": "b0e26595367d9768a0359151c26f66f8b7075d0d3bda21277a4e50557c1e43b3", "labelers": 3, "labels": 4, "mechanism": "rr", "prices": {}, "release": "r0002-b4b3e693"}','81822388df6e1a8222547fdd072c294c06deb39281f8cb6ef6213ca42f0522f8','f0d314abdedea2c4ce7496a3a4960e557411f69387d1a46ded7c1aa8981d09b9');
INSERT INTO journal VALUES(7,'2026-01-01T00:00:00Z','refunded','{"labels": 4, "release": "r0002-b4b3e693"}','f0d314abdedea2c4ce7496a3a4960e557411f69387d1a46ded7c1aa8981d09b9','548e59ee6661d08847f414a8f124d14ec5355be8c413d11f8f507d68c78ba17c');
INSERT INTO journal VALUES(8,'2026-01-01T00:00:00Z','charged','{"charges": "6e67cad9d80d2cd158a342c4d73884ecd8cf0bf5b818ab20e5166768b4241c9b", "labelers": 4, "labels": 8, "mechanism": "rr", "prices": {}, "release": "r0003-d53a7c61"}','548e59ee6661d08847f414a8f124d14ec5355be8c413d11f8f507d68c78ba17c','bd95849849228c9b9fbf46fae4037aadaa650ce5f813d7b0ee6f256458712f6e');
INSERT INTO journal VALUES(9,'2026-01-01T00:00:00Z','computing','{"release": "r0003-d53a7c61"}','bd95849849228c9b9fbf46fae4037aadaa650ce5f813d7b0ee6f256458712f6e','4c8c84d4edd8acfa974b567fd26ffeba78629ff65c10cbf7ec2ef882fca7af99');
INSERT INTO journal VALUES(10,'2026-01-01T00:00:00Z','charged','{"charges": "870b4d7e127a9951e24a074c88562f9fb3f54a4401d8e62b0c5047bfaf1b7ac0", "labelers": 3, "labels": 4, "mechanism": "rr", "prices": {}, "release": "r0004-f9f9d585"}','4c8c84d4edd8acfa974b567fd26ffeba78629ff65c10cbf7ec2ef882fca7af99','b46ead732b5033d4a546704cd8e31da3c53771275ca2191785cf8a8b32b84980');
CREATE INDEX ix_releases_idempotency_key ON releases (idempotency_key);
